"""What a store remembers of its creation, and of `alter_config`."""

import json

import pytest
from harness.crew import Member, MemberError

import eoslog
from eoslog.errors import CorruptRecordError, InvalidConfigError, StoreInUseError, StoreVersionError
from eoslog.session.settings import StoreSettings, read_settings, write_settings
from eoslog.store.store import engine_of

GIVEN = {"log.retention.ms": "1000", "producer.id.expiration.ms": 5}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def create(path, **options):
    with eoslog.open(path, create=True, **options) as store:
        store.create_topic("t")
    return path


def test_a_second_opening_need_not_repeat_what_the_first_gave(path):
    create(path, durability="process", config=GIVEN)
    with eoslog.open(path) as store:
        assert store.durability == "process"
        assert store.config["producer.id.expiration.ms"] == 5
        assert engine_of(store).topic_config("t")["retention.ms"] == 1000
        assert store.remembered == StoreSettings("process", {k: int(v) for k, v in GIVEN.items()})


def test_an_argument_goes_before_what_is_remembered_and_changes_nothing_of_it(path):
    create(path, durability="always", config=GIVEN)
    with eoslog.open(path, durability="process", config={"log.retention.ms": 7}) as store:
        assert store.durability == "process"
        assert engine_of(store).topic_config("t")["retention.ms"] == 7
        assert store.config["producer.id.expiration.ms"] == 5
    with eoslog.open(path, create=True) as store:
        assert store.durability == "always"
        assert engine_of(store).topic_config("t")["retention.ms"] == 1000


def test_another_process_need_not_repeat_them_and_none_is_weaker_than_remembered(path):
    create(path, durability="process", config=GIVEN)
    with eoslog.open(path) as store, Member() as other:
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        assert other.value("store.durability") == store.durability == "process"
        assert other.value("store.config['producer.id.expiration.ms']") == 5
    store = eoslog.open(path, durability="commit")
    with store, Member() as other:
        other.run("import eoslog; store = eoslog.open(path, durability=None)", path=str(path))
        assert other.value("store.durability") == "commit"
    create(path.with_name("durable"))
    with (
        eoslog.open(path.with_name("durable"), durability="process"),
        Member() as other,
        pytest.raises(MemberError, match=StoreInUseError.__name__),
    ):
        other.run("import eoslog; eoslog.open(path)", path=str(path.with_name("durable")))


@pytest.mark.parametrize("altered", ["always", "process"])
def test_another_durability_is_for_the_next_session_and_keeps_no_process_out(path, altered):
    create(path)
    with eoslog.open(path) as store, Member() as other:
        store.alter_config(durability=altered)
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        assert other.value("store.durability") == store.durability == "commit"
        other.run("store.close()")
        with pytest.raises(MemberError, match=StoreInUseError.__name__):
            other.run(f"eoslog.open(path, durability={altered!r})")
    with eoslog.open(path) as store:
        assert store.durability == altered


def test_another_durability_keeps_no_process_out_of_the_session_of_the_creation(path):
    with eoslog.open(path, create=True, durability="process") as store, Member() as other:
        store.alter_config(durability="commit")
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        assert other.value("store.durability") == "process"


def test_a_process_that_gives_none_joins_those_with_a_stronger_one(path):
    create(path)
    with eoslog.open(path, durability="always"), Member() as other:
        other.run("import eoslog; store = eoslog.open(path)", path=str(path))
        assert other.value("store.durability") == "always"


def test_what_is_remembered_can_be_altered(path):
    create(path, config=GIVEN)
    with eoslog.open(path) as store:
        store.alter_config({"log.retention.ms": None, "eoslog.spare.segments": 0})
        store.alter_config(durability="always")
        assert (store.durability, store.config["eoslog.spare.segments"]) == ("commit", 1)
        for config, durability, error in (
            ({"retention.ms": 1}, None, InvalidConfigError),
            ({"retention.ms": None}, None, InvalidConfigError),
            (None, "never", ValueError),
        ):
            with pytest.raises(error):
                store.alter_config(config, durability=durability)
    with eoslog.open(path) as store:
        assert store.remembered == StoreSettings(
            "always", {"producer.id.expiration.ms": 5, "eoslog.spare.segments": 0}
        )
        assert (store.durability, store.config["eoslog.spare.segments"]) == ("always", 0)
        assert engine_of(store).topic_config("t")["retention.ms"] == -1


def test_a_store_without_the_file_has_the_defaults(path):
    create(path, durability="process", config=GIVEN)
    (path / "state" / "settings.json").unlink()
    with eoslog.open(path) as store:
        assert store.durability == "commit"
        assert store.remembered == StoreSettings()


def test_every_flipped_bit_is_noticed(path):
    create(path, durability="always", config=GIVEN)
    file = path / "state" / "settings.json"
    content = file.read_bytes()
    wanted = read_settings(path / "state")
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            try:
                assert read_settings(path / "state") == wanted
            except (CorruptRecordError, StoreVersionError):
                continue
    file.write_bytes(content.replace(b"always", b"commit"))
    with pytest.raises(CorruptRecordError, match="not the store"):
        eoslog.open(path)
    file.write_bytes(json.dumps({"version": 2}).encode())
    with pytest.raises(StoreVersionError, match="version 2"):
        eoslog.open(path)


def test_a_creation_that_was_cut_short_is_begun_again(path):
    (path / "state").mkdir(parents=True)
    write_settings(path / "state", StoreSettings("process"))
    create(path, durability="always")
    assert read_settings(path / "state").durability == "always"
