# tern bench and tern doctor: what they report, not how fast it is.
. "$(dirname "$0")/lib.sh"

# ---- bench ----
run 0 "$TERN" bench -m "$MODEL" -p 24 -n 3 -d 100,0 --kv f16,l4 -r 2 --json
same "$(json '#results' :machine.cpu :machine.isa :machine.cores :machine.threads :machine.memory_bytes \
    machine.model.name)" "8
string
string
integer
integer
integer
tiny chat" "the report"
i=0
while [ $i -lt 8 ]; do
    same "$(json :results.$i.median :results.$i.min :results.$i.max results.$i.unit)" "real
real
real
tok/s" "result $i"
    i=$((i + 1))
done
same "$(json results.0.test results.0.depth results.0.kv results.3.depth results.3.kv results.4.test)" "pp24
0
f16
100
l4
tg3" "order of results"
run 0 "$TERN" bench -m "$MODEL" -p 0 -n 2 -d 0,0,5 --kv k=l4,v=l3 --kv q8 -r 1 --json -t 2
same "$(json '#results' results.0.test results.0.kv results.1.kv results.2.depth machine.threads)" "4
tg2
k=l4,v=l3
q8
5
2" "plans given one by one"
run 0 "$TERN" bench -m "$MODEL" -p 7 -n 0 -d 0 --kv f16 -r 1 --csv
same "$(head -n 1 "$out")" "test,depth,kv,median,min,max,unit" "head of the table"
same "$(tail -n 1 "$out" | cut -d, -f1-3)" 'pp7,0,"f16"' "row of the table"
run 0 "$TERN" bench -m "$MODEL" -p 7 -n 1 -d 0 --kv f16 -r 1
grep -q '^pp7 ' "$out" || say "a table for people"
# Depths of the default list that a small context has no room for are left out; a prompt is cut to the room there is.
run 0 "$TERN" bench -m "$TEST_DATA/tiny/llama-tied.gguf" -p 4 -n 1 --kv f16 -r 1 --json
[ "$(json '#results')" -ge 2 ] || say "at least depth 0"
run 0 "$TERN" bench -m "$MODEL" -p 100 -n 1 -d 8150 --kv l4 -r 1 --json
same "$(json results.0.test)" "pp42" "a prompt as long as the room"

# ---- doctor ----
run 0 "$TERN" doctor
for word in processor kernels threads memory verdict; do
    grep -q "^$word" "$out" || say "tell $word"
done
run 0 "$TERN" doctor --json
same "$(json ok verdict :machine.isa)" "true
ok
string" "doctor --json"
run 0 "$TERN" doctor -m "$MODEL" --json --kv l4
same "$(json ok verdict model.arch kv.spec ctx '#kv.layers')" "true
ok
llama
l4
8192
3" "doctor of a model"
run 0 "$TERN" doctor --cpu-mask c --json
same "$(json machine.isa)" c "the masked instruction set"
for f in "$TEST_DATA"/tiny/*.gguf; do
    run 0 "$TERN" doctor -m "$f"
    grep -q '^verdict *ok' "$out" || say "find $f in order"
done
head -c 5000 "$MODEL" >"$work/cut.gguf"
run 1 "$TERN" doctor -m "$work/cut.gguf"
one_line cut.gguf
grep -q '^verdict .*cut.gguf' "$out" || say "tell what is wrong"
run 1 "$TERN" doctor -m "$work/cut.gguf" --json
same "$(json ok)" false "a broken file"

finish
