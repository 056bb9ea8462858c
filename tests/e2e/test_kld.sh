# tern eval kld: the table, the JSON object, and what does not change the figures.
. "$(dirname "$0")/lib.sh"

# words N FILE: a text of N different lines.
words() {
    i=0
    while [ $i -lt "$1" ]; do
        echo "Line $i: the tern flew $((i * 7919 % 1000)) miles and met $((i * 104729 % 77)) gulls on the way to the sea."
        i=$((i + 1))
    done >"$2"
}
words 60 "$work/a.txt"
words 30 "$work/b.txt"

# ---- the table ----
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 2 --kv f16,l4 --kv k=q8,v=l3
same "$(cat "$err")" "" "stderr"
grep -q 'chunks: 2 of 128 tokens, 63 scored in each, decode rows' "$out" || say "tell what was measured"
grep -q '^bf16 (floor)  *16.000 ' "$out" || say "have the floor"
grep -q '^f16  *16.000  *0  *0  *0  *0  *0  *100.00  *1.0000  *126$' "$out" || say "f16 is exactly 0"
grep -q '^l4  *4.250 ' "$out" || say "have l4"
grep -q '^k=q8,v=l3  *5.750 ' "$out" || say "take a plan with commas as one"
for pair in 'f16 : l4' 'f16 : k=q8,v=l3' 'l4 : k=q8,v=l3'; do
    grep -q "^$pair  *[0-9][^ ]* \[[^ ]*-[^ ]*\]  *[0-9][^ ]* \[[^ ]*-[^ ]*\]$" "$out" || say "compare $pair"
done
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv affine8,affine4,g16
grep -q '^affine8  *8.500 ' "$out" || say "have affine8"
grep -q '^affine4  *4.500 ' "$out" || say "have affine4"
grep -q '^g16  *5.000 ' "$out" || say "have g16"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 256 --chunks 1 --kv f16,l2 --kv-when end
grep -q ', prompts coded at their end$' "$out" || say "tell when prompts are coded"
grep -q '^f16  *16.000  *0  *0  *0  *0  *0  *100.00' "$out" || say "f16 is exactly 0, whenever it is coded"
at_end=$(grep '^l2 ' "$out")
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 256 --chunks 1 --kv f16,l2
[ "$at_end" != "$(grep '^l2 ' "$out")" ] || say "coding at the end makes a difference"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l4
grep -q '^ratio' "$out" && say "no ratios of one plan"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l4,f16
grep -q '^l4 : f16  *-  *-$' "$out" || say "no ratio to 0"

# ---- JSON, and what the figures do not depend on ----
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -f "$work/b.txt" -c 128 --chunks 3 --kv l4,l2 --json -t 1
same "$(json base.kv.spec :base.ppl ctx n_chunks n_scored rows exact chunks_at_once plans_at_once '#texts' \
    texts.0.n_chunks texts.1.n_chunks '#plans' '#ratios' :seconds :peak_memory_bytes)" "f16
real
128
3
63
decode
false
3
4
2
2
1
3
1
real
integer" "the object"
same "$(json plans.0.kv.spec plans.0.floor plans.1.kv.spec plans.1.floor plans.2.kv.spec plans.1.n_tokens plans.1.texts.0.n_tokens \
    plans.1.texts.1.n_tokens plans.1.bits_per_value ratios.0.a ratios.0.b :ratios.0.mean.low :ratios.0.trimmed.high)" \
    "bf16
true
l4
false
l2
189
126
63
4.25
l4
l2
real
real" "plans and ratios"
figures() {
    json base.ppl plans.0.mean plans.1.mean plans.1.trimmed plans.1.median plans.1.p99 plans.1.max plans.1.top1 \
        plans.1.ppl_ratio plans.1.texts.1.mean plans.2.mean ratios.0.mean.value ratios.0.mean.low ratios.0.trimmed.high
}
want=$(figures)
for o in "-t 3" "--chunk 2" "--chunk 5 -t 2"; do
    # shellcheck disable=SC2086
    run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -f "$work/b.txt" -c 128 --chunks 3 --kv l4,l2 --json $o
    same "$(figures)" "$want" "figures with $o"
done
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv f16,l4 --json --prefill --exact
same "$(json rows exact plans.1.mean plans.1.max plans.1.top1 ratios.0.mean.value)" "prompt
true
0.0
0.0
1.0
0.0" "f16 through prompt rows"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l4,f16 --json
same "$(json :ratios.0.mean.value :ratios.0.mean.low)" "null
null" "a ratio to 0"
run_with_input 0 "$(cat "$work/a.txt")" "$TERN" eval kld -m "$MODEL" -f - -c 128 --json
same "$(json n_chunks '#plans' plans.1.kv.spec plans.4.kv.spec '#ratios')" "4
5
t4
t2
6" "the defaults"

# ---- layers ----
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l3 --per-layer
grep -q '^l3 in one layer' "$out" || say "a table of layers"
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l3 --per-layer --json
same "$(json '#layers' '#plans' | tr '\n' ' ')" "3 2 " "one row per layer"
same "$(json layers.0.layer layers.1.layer layers.2.layer | sort | tr '\n' ' ')" "0 1 2 " "every layer once"
json layers.0.share layers.1.share layers.2.share | awk '
    NR > 1 && $1 > last { bad = 1 }
    { sum += $1; last = $1 }
    END { exit bad || sum < 0.999999 || sum > 1.000001 }' || say "shares fall and add up to 1: $(json layers.0.share)"

# ---- talk ----
run 0 "$TERN" eval kld -m "$MODEL" -f "$work/a.txt" -c 128 --chunks 1 --kv l4 -v
same "$(grep -c 'KV plan.*:$' "$err")" 3 "plans that --verbose describes"
words 2000 "$work/long.txt"
interrupt "$err" 'KV plan 1' "$TERN" eval kld -m "$MODEL" -f "$work/long.txt" -c 512 --chunks 100 --exact --cpu-mask c -v
silent

finish
