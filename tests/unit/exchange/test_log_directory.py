"""The files at the top of a broker's log directory."""

from eoslog import TopicPartition
from eoslog.exchange.log_directory import (
    BrokerIdentity,
    LogBounds,
    write_leader_epochs,
    write_top_files,
)
from eoslog.fs.checkpoint_file import read_checkpoint


def test_the_files_at_the_top(tmp_path):
    logs = {TopicPartition("b", 0): LogBounds(0, 7), TopicPartition("a", 1): LogBounds(3, 5)}
    write_top_files(tmp_path, BrokerIdentity("c" * 22, "d" * 22, 4), logs)
    assert (tmp_path / "meta.properties").read_text().splitlines()[1:] == [
        f"cluster.id={'c' * 22}",
        f"directory.id={'d' * 22}",
        "node.id=4",
        "version=1",
    ]
    ends = "0\n2\na 1 5\nb 0 7\n"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == ends
    assert (tmp_path / "replication-offset-checkpoint").read_text() == ends
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\na 1 3\n"
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":-1}'
    starts = read_checkpoint(tmp_path / "log-start-offset-checkpoint")
    assert starts == {TopicPartition("a", 1): 3}


def test_all_records_are_of_the_first_leader_epoch(tmp_path):
    write_leader_epochs(tmp_path, LogBounds(3, 5))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 3\n"
    write_leader_epochs(tmp_path, LogBounds(5, 5))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n0\n"
