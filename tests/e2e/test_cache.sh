# tern cache: what tern keeps for later runs is told before it is written, listed, and removed.
. "$(dirname "$0")/lib.sh"

cp "$MODEL" "$work/m.gguf"
run 0 "$TERN" cache ls
same "$(cat "$out")" "" "a list of nothing"
[ ! -e "$XDG_CACHE_HOME" ] || say "a list makes no folder"

# ---- written: said before, listed after, once ----
"$MAKE_TEXT_MODEL" --large "$work/large.gguf"
run 0 "$TERN" run -m "$work/large.gguf" -p x -n 1 --calibration off
head -n 1 "$err" | grep -q "^tern: writing packed weights to $work/large.gguf.packed ([0-9.]* MiB), once" ||
    say "the first line tells where and how large"
size=$(sed -n 's/^tern: writing packed weights to [^ ]* (\([0-9.]*\) MiB.*/\1/p' "$err")
same "$size" "$(wc -c <"$work/large.gguf.packed" | awk '{ printf "%.1f", $1 / 1048576 }')" "the size that was told"
run 0 "$TERN" run -m "$work/large.gguf" -p x -n 1 --calibration off
grep -q 'writing' "$err" && say "written once"
run 0 "$TERN" run -m "$work/m.gguf" -p x -n 1 --packed "$work/other.packed"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf"
run 0 "$TERN" cache ls --json
same "$(json folder '#files' files.0.path files.0.kind files.1.path files.2.kind files.0.orphan files.0.bytes)" \
    "$XDG_CACHE_HOME/tern
3
$work/large.gguf.packed
packed weights
$work/m.gguf.ternkv
packed weights
false
$(wc -c <"$work/large.gguf.packed")" "what is listed"
run 0 "$TERN" cache ls
same "$(wc -l <"$out")" 3 "lines"
grep -q "3 files" "$err" || say "a sum"

# ---- removed: what is listed, all or nothing ----
echo "a letter" >"$work/letter"
run 1 "$TERN" cache rm "$work/m.gguf.ternkv" "$work/letter"
one_line "letter: is not in the list"
[ -e "$work/m.gguf.ternkv" ] || say "one wrong name, and nothing is removed"
run 1 "$TERN" cache rm "$work/m.gguf"
[ -e "$work/m.gguf" ] || say "a model is no such file"
cp "$work/letter" "$work/other.packed" # somebody's by now
run 0 "$TERN" cache ls
grep -q other.packed "$out" && say "a foreign file is not listed"
run 0 "$TERN" cache rm m.gguf.ternkv
[ ! -e "$work/m.gguf.ternkv" ] || say "removed by name"
rm "$work/large.gguf"
run 0 "$TERN" cache ls
grep -q "large.gguf.packed (its model is gone)" "$out" || say "a file without its model"
run 0 "$TERN" cache rm --all
[ ! -e "$work/large.gguf.packed" ] || say "all are removed"
same "$(cat "$work/other.packed")" "a letter" "the foreign file"
run 0 "$TERN" cache ls
same "$(cat "$out")" "" "a list of nothing"

# ---- what an interrupted run leaves ----
"$MAKE_TEXT_MODEL" --large "$work/large.gguf"
(
    ulimit -f 1000 # blocks of 512 bytes, or of 1024: too few for the file
    run 0 "$TERN" run -m "$work/large.gguf" -p x -n 1 --calibration off
    [ "$complaints" -eq 0 ]
) || say "a file that cannot be written stops nothing"
[ ! -e "$work/large.gguf.packed" ] || say "too large to be written"
dd if=/dev/zero of="$work/large.gguf.packed.tmp" bs=1024 count=8 2>/dev/null
cp "$work/letter" "$work/m.gguf.packed.tmp"
run 0 "$TERN" cache ls
grep -q "8.0 KiB  packed weights .*large.gguf.packed.tmp (unfinished" "$out" || say "what a killed run left is listed"
grep -q "m.gguf.packed.tmp" "$out" && say "a foreign file is not"
run 0 "$TERN" cache ls --json
same "$(json '#files' files.0.path files.0.unfinished files.0.being_written)" "1
$work/large.gguf.packed.tmp
true
false" "the same in JSON"
run 0 "$TERN" doctor
grep -q "^unfinished  1 file, 8.0 KiB, " "$out" || say "doctor tells of it"
run 0 "$TERN" doctor --json
same "$(json n_unfinished unfinished_bytes)" "1
8192" "the same in JSON"
mv "$work/large.gguf" "$work/large.away"
run 0 "$TERN" cache ls --json
same "$(json files.0.orphan)" "true" "its model is gone"
run 0 "$TERN" cache ls
grep -q "large.gguf.packed.tmp (unfinished, and its model is gone)" "$out" || say "and it is said"
mv "$work/large.away" "$work/large.gguf"
if command -v flock >/dev/null 2>&1; then
    (exec 9<"$work/large.gguf.packed.tmp" && flock 9 && exec sleep 30) &
    writer=$!
    while flock -n "$work/large.gguf.packed.tmp" true; do sleep 0.05; done
    run 0 "$TERN" cache ls
    grep -q "large.gguf.packed.tmp (being written)" "$out" || say "one that is being written"
    run 0 "$TERN" cache rm --all
    grep -q "large.gguf.packed.tmp stays: another process is writing it" "$err" || say "it is left alone"
    [ -e "$work/large.gguf.packed.tmp" ] || say "it is there"
    kill $writer
    wait $writer 2>/dev/null
fi
run 0 "$TERN" cache rm large.gguf.packed.tmp
[ ! -e "$work/large.gguf.packed.tmp" ] || say "removed by name"
run 0 "$TERN" doctor
grep -q "^unfinished" "$out" && say "doctor has nothing to tell"
[ -e "$work/m.gguf.packed.tmp" ] || say "the foreign file stays"
rm "$work/m.gguf.packed.tmp" "$work/large.gguf"

# ---- wrong use, and users without a home ----
run 2 "$TERN" cache
one_line "ls or rm" "tern cache --help"
run 2 "$TERN" cache rm
one_line "names of files, or --all"
run 2 "$TERN" cache rm --all x
run 0 "$TERN" cache --help
grep -q "cache rm" "$out" || say "a list of commands"
run 1 env -u XDG_CACHE_HOME -u HOME "$TERN" cache ls
one_line "neither XDG_CACHE_HOME nor HOME"
run 0 env -u XDG_CACHE_HOME -u HOME "$TERN" run -m "$work/m.gguf" -p x -n 1 --packed "$work/p"
[ -e "$work/p" ] || say "a file without a list"
run 0 env XDG_CACHE_HOME="$work/letter/x" "$TERN" run -m "$work/m.gguf" -p x -n 1 --packed "$work/q"
[ -e "$work/q" ] || say "a cache folder that cannot be made stops nothing"

# ---- a folder that cannot be written ----
if [ "$(id -u)" -ne 0 ]; then
    mkdir "$work/ro"
    cp "$MODEL" "$work/ro/m.gguf"
    chmod 555 "$work/ro"
    run 0 "$TERN" doctor --calibrate -m "$work/ro/m.gguf"
    run 0 "$TERN" inspect "$work/ro/m.gguf" --kv l4
    grep -q "keys calibrated" "$out" || say "found in the cache folder"
    run 0 "$TERN" cache ls
    grep -q "$XDG_CACHE_HOME/tern/m.gguf-[0-9a-f]*.ternkv" "$out" || say "listed there"
    chmod 755 "$work/ro"
fi

finish
