# examples/kvq_npy: attention through libternkv alone, on arrays from files.
. "$(dirname "$0")/lib.sh"

"$MAKE_NPY" "$work/q.npy" 5 128 1
"$MAKE_NPY" "$work/k.npy" 200 128 2
"$MAKE_NPY" "$work/v.npy" 200 128 3
"$MAKE_NPY" "$work/v64.npy" 200 64 4
"$MAKE_NPY" "$work/short.npy" 199 128 5
"$MAKE_NPY" "$work/narrow.npy" 200 33 6
"$MAKE_NPY" "$work/f8.npy" 200 128 7 '<f8'
head -c 1000 "$work/k.npy" >"$work/cut.npy"
printf 'GGUF' >"$work/no.npy"

# attend KEYS VALUES: one line; the error is left in $error, in millionths.
attend() {
    run 0 "$KVQ_NPY" "$1" "$2" "$work/q.npy" "$work/k.npy" "$work/v.npy"
    same "$(cat "$err")" "" "stderr"
    same "$(wc -l <"$out")" 1 "lines"
    error=$(sed -n 's/.*relative error of the output //p' "$out" | awk '{ printf "%d", $1 * 1e6 }')
}

# below A B WHAT
below() {
    checks=$((checks + 1))
    [ "$1" -lt "$2" ] || say "$3: $1 is not below $2"
}

attend f32 f32
grep -q '^k=f32 v=f32: 0.50 times smaller than 16 bits' "$out" || say "tell the size of f32"
below "$error" 2 "error of f32"
attend f16 f16
f16=$error
below 1 "$f16" "error of f16"
attend q8 q8
grep -q ': 1.97 times smaller' "$out" || say "tell the size of q8"
below "$f16" "$error" "f16 against q8"
q8=$error
attend l4 l4
grep -q ': 3.88 times smaller' "$out" || say "tell the size of l4"
below "$q8" "$error" "q8 against l4"
l4=$error
below "$l4" 220000 "error of l4"
attend l4 l2
below "$l4" "$error" "l4 against l2"

# A head of the values may have another size.
run 0 "$KVQ_NPY" l4 l4 "$work/q.npy" "$work/k.npy" "$work/v64.npy"

# ---- what cannot be done ends in one line ----
run 1 "$KVQ_NPY"
one_line usage
run 1 "$KVQ_NPY" l5 l4 "$work/q.npy" "$work/k.npy" "$work/v.npy"
one_line keys '"l5"'
run 1 "$KVQ_NPY" l4 l4 "$work/q.npy" "$work/k.npy" "$work/narrow.npy"
one_line values '33 dims'
run 1 "$KVQ_NPY" l4 l4 "$work/q.npy" "$work/k.npy" "$work/short.npy"
one_line shapes
for file in f8 cut no missing; do
    run 1 "$KVQ_NPY" l4 l4 "$work/q.npy" "$work/$file.npy" "$work/v.npy"
    one_line "$work/$file.npy"
done
finish
