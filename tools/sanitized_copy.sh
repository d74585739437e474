# Sourced: makes a copy of the tree, built with the C compiler's sanitizers, and goes there.
# Before: $python, $compiler, $copy (its folder) and perhaps EOSLOG_COVERAGE. After: $libraries holds
# what must be preloaded, and PYTHONPATH leads to the copy.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export EOSLOG_SANITIZE=address,undefined
libraries=""
for name in libasan.so libubsan.so; do
  path=$("$compiler" -print-file-name="$name")
  [ "$path" != "$name" ] || { echo "error: $compiler has no $name" >&2; exit 1; }
  libraries="$libraries $path"
done
libraries=${libraries# }
bash tools/build_copy.sh "$python" "$copy"
cd "$copy"
export PYTHONPATH=$PWD
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
