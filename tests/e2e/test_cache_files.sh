# Cache files: built by tern cache build, used by tern run --cache, checked, and refused by the name of what differs.
. "$(dirname "$0")/lib.sh"

long=$(i=0; while [ $i -lt 60 ]; do printf 'word %d and more of it ' $i; i=$((i + 1)); done)
raw="--raw --calibration off"

run 0 "$TERN" cache build -m "$MODEL" $raw -p "$long" -o "$work/a.ternc"
grep -q "a.ternc holds [0-9]* of [0-9]* prompt tokens" "$err" || say "what was built"
run 0 "$TERN" cache build -m "$MODEL" $raw -p "$long" -o "$work/b.ternc" --chunk 64 -t 1
cmp -s "$work/a.ternc" "$work/b.ternc" || say "the same bytes however it was computed"
run 0 "$TERN" run -m "$MODEL" $raw -p "$long end" -n 8
cold=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" $raw -p "$long end" -n 8 --cache "$work/a.ternc"
same "$(cat "$out")" "$cold" "the text that starts from a file"
grep -q "prompt tokens are in $work/a.ternc" "$err" || say "how much was found"
run 0 "$TERN" run -m "$MODEL" $raw -p "another $long" -n 8 --cache "$work/a.ternc"
grep -q "does not begin like" "$err" || say "a prompt that begins otherwise"

# ---- other models, plans, arithmetic; damage ----
run 1 "$TERN" run -m "$MODEL" $raw -p "$long" -n 8 --cache "$work/a.ternc" --kv q8
grep -q "a.ternc: was computed with --kv t4 .*, here it is --kv q8" "$err" || say "which plan"
run 1 "$TERN" run -m "$TOOLS_MODEL" $raw -p "$long" -n 8 --cache "$work/a.ternc"
one_line "a.ternc: was computed with other weights"
run 1 "$TERN" run -m "$MODEL" $raw -p "$long" -n 8 --cache "$work/a.ternc" --exact --kv t4
one_line "a.ternc: was computed in the arithmetic"
head -c 5000 "$work/a.ternc" >"$work/cut.ternc"
run 1 "$TERN" run -m "$MODEL" $raw -p "$long" -n 8 --cache "$work/cut.ternc"
one_line "cut.ternc: has 5000 bytes"
run 1 "$TERN" run -m "$MODEL" $raw -p "$long" -n 8 --cache "$work/nothing.ternc"
one_line "nothing.ternc"
run 1 "$TERN" run -m "$MODEL" $raw -p "$long" -n 8 --cache "$MODEL"
one_line "not a cache file"

# ---- what cannot be built, and what is there stays ----
run 1 "$TERN" cache build -m "$MODEL" $raw -p short -o "$work/c.ternc"
one_line "pages of 64"
[ ! -e "$work/c.ternc" ] || say "nothing is left of what failed"
echo "a letter" >"$work/letter"
run 1 "$TERN" cache build -m "$MODEL" $raw -p "$long" -o "$work/letter"
same "$(cat "$work/letter")" "a letter" "a file of another kind"
run 1 "$TERN" cache build -m "$MODEL" $raw -p "$long" -o "$work/c.ternc" --kv t4,recent=128
one_line "recent=N"
run 2 "$TERN" run -m "$MODEL" -p x --cache "$work/a.ternc" --prompt-cache "$work/s"
one_line "exclude each other"

# ---- checked ----
run 0 "$TERN" cache verify "$work/a.ternc" "$work/b.ternc"
same "$(wc -l <"$out")" 2 "files that were checked"
run 1 "$TERN" cache verify "$work/a.ternc" "$work/cut.ternc"
grep -q "cut.ternc: has 5000 bytes" "$err" || say "what is wrong with it"
mkdir "$work/empty"
run 0 "$TERN" cache ls "$work/empty"
grep -q "0 pages of 64 tokens" "$out" || say "an empty directory"
run 1 "$TERN" cache ls "$work/none"
one_line "cannot open the directory"
run 2 "$TERN" cache verify
one_line "wants cache files"

finish
