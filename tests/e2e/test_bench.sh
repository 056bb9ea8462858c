# tern bench and tern doctor: what they report, not how fast it is.
. "$(dirname "$0")/lib.sh"

# ---- bench ----
# bench_fails STATUS TEXT ARGUMENTS...: refused with one line, before anything is printed.
bench_fails() {
    expected=$1
    text=$2
    shift 2
    run "$expected" "$TERN" bench -m "$MODEL" "$@"
    silent
    one_line "$text"
}
# column NAME ROW: a value of the comma-separated table on stdout (no quoted value here holds a comma).
column() {
    awk -F, -v name="$1" -v row="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i } NR == row + 1 { print $c }' "$out"
}

run 0 "$TERN" bench --read 1M -m "$MODEL" -p 24 -n 3 -d 100,0 --kv f16,l4 -r 2 --json
same "$(json '#results' :machine.cpu :machine.isa :machine.cores :machine.memory_bytes model.name)" "8
string
string
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
same "$(json results.0.test results.0.depth results.0.kv.spec results.3.depth results.3.kv.spec results.4.test)" "pp24
0
f16
100
l4
tg3" "order of results"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 0 -n 2 -d 0,0,5 --kv k=l4,v=l3 --kv q8 -r 1 --json -t 2
same "$(json '#results' results.0.test results.0.kv.spec results.1.kv.spec results.2.depth results.0.threads)" "4
tg2
k=l4,v=l3
q8
5
2" "plans given one by one"

# ---- bench: batches and threads ----
# Every list in ascending order, each value once.  A batch shares the weights, not the caches.
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 5 -n 2 -d 100 --kv f16 -r 2 -b 4,1,4 -t 2,1 --json
same "$(json '#results' results.0.test results.0.threads results.1.threads results.2.threads results.3.threads \
    results.2.batch results.3.batch results.4.batch results.5.batch)" "6
pp5
1
2
1
2
1
1
4
4" "order of batches and threads"
same "$(json results.2.x_one.median :results.4.x_one.median :results.4.x_one.min :results.4.x_one.max \
    :results.4.per_sequence :results.4.read_share.median :results.4.read_share.min :results.4.read_share.max \
    :results.4.read_gb_per_s.median :results.0.read_gb_per_s.max)" "1.0
real
real
real
real
real
real
real
real
real" "figures of a batch"
weights=$(json results.2.weight_bytes_per_token)
same "$(json results.4.weight_bytes_per_token)" "$(awk "BEGIN { print $weights / 4 }").0" "a batch reads the weights once"
same "$(json results.2.kv_bytes_per_token results.4.kv_bytes_per_token)" "$(json results.3.kv_bytes_per_token \
    results.5.kv_bytes_per_token)" "bytes on any number of threads"
# 100 tokens and the new ones, 1.5 in the mean over two steps, in 16 bits: 3 layers, one KV head of 64.
same "$(json results.2.kv_bytes_per_token)" 77952.0 "keys and values"
same "$weights" 1779072.0 "all matrices but the embedding"
json results.0.per_sequence >"$work/no" 2>&1 && say "no figures of a batch beside a prompt's"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 0 -n 2 -d 0 --kv l4 -r 1 -b 3 -t 0,1 --json
same "$(json :results.0.x_one results.0.batch)" "null
3" "nothing to compare a batch with"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 0 -n 1 -d 0 --kv f16,l4 -r 1 -b 1,2 -t 2 -v
[ "$(grep -c '2 threads' "$err")" -eq 1 ] || say "one engine for all plans"
same "$(tail -n +2 "$out" | awk '{ print $1, $2, $3, $4, $5, NF }')" "tg1 0 f16 2 1 12
tg1 0 l4 2 1 12
tg1 0 f16 2 2 12
tg1 0 l4 2 2 12" "rows of the table"
bench_fails 2 "-b (--batch) must be a list of integers from 1 to 256" -b 0
bench_fails 2 "-b (--batch)" -b 1,,2
bench_fails 2 "-b (--batch)" -b 257
bench_fails 2 "-t (--threads) must be a list" -t 1,x
bench_fails 2 "exclude each other" --json --csv
bench_fails 1 "9 sequences together: a step takes 8" -b 9 --chunk 8 -d 0
bench_fails 1 "depth 9000" -d 9000
bench_fails 1 "4096 bytes are too few to measure reading" --read 4K -d 0
bench_fails 1 "GiB and the machine has" --read 900T -d 0
bench_fails 2 "--read must be a number" --read much

# ---- bench: comma-separated values ----
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 7 -n 2 -d 0 --kv f16 -r 1 -b 1,2 --csv
same "$(head -n 1 "$out")" "test,depth,kv,threads,batch,median,min,max,unit,per_sequence,x_one,x_one_min,x_one_max,\
weight_bytes_per_token,kv_bytes_per_token,read_share,read_share_min,read_share_max,read_gb_per_s,reps,model,version,\
cpu,isa" "names of the columns"
same "$(awk -F, '{ print NF }' "$out" | sort -u)" 24 "values in every line"
same "$(column test 1) $(column kv 1) $(column per_sequence 1) $(column batch 3) $(column unit 3)" 'pp7 "f16"  2 tok/s' \
    "values"
same "$(column model 2) $(column reps 2) $(column x_one 2)" "\"$MODEL\" 1 1.000" "more values"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 7 -n 0 -d 0 --kv k=l4,v=l3 -r 1 --csv
grep -q '^pp7,0,"k=l4,v=l3",' "$out" || say "quote a plan that holds a comma"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 7 -n 1 -d 0 --kv f16 -r 1
grep -q '^pp7 ' "$out" || say "a table for people"
# Depths of the default list that a small context has no room for are left out; a prompt is cut to the room there is.
run 0 "$TERN" bench --read 1M -m "$TEST_DATA/tiny/llama-tied.gguf" -p 4 -n 1 --kv f16 -r 1 --json
[ "$(json '#results')" -ge 2 ] || say "at least depth 0"
run 0 "$TERN" bench --read 1M -m "$TEST_DATA/tiny/llama-tied.gguf" -p 100 -n 1 -d 470 --kv l4 -r 1 --json
same "$(json results.0.test)" "pp42" "a prompt as long as the room"

# ---- a model of random weights, which has no tokenizer ----
if command -v python3 >/dev/null; then
    make="$TEST_DATA/../../tools/make_synthetic_model.py"
    run 0 python3 "$make" --preset tiny --type q4_k --vocab 96 --kv-heads 1 -o "$work/random.gguf"
    run 0 "$TERN" bench --read 1M -m "$work/random.gguf" -p 5 -n 3 -d 70 --kv l4 -r 1 -b 2 --json
    same "$(json '#results' results.1.batch model.arch)" "2
2
llama" "bench of random weights"
    run 0 "$TERN" doctor -m "$work/random.gguf" --json
    same "$(json ok model.tokenizer model.n_vocab)" "true
none
96" "random weights"
    run 0 python3 "$make" --preset tiny --type q4_k_m --layers 8 -o "$work/mixed.gguf"
    run 0 "$TERN" inspect "$work/mixed.gguf"
    same "$(awk '/^  Q[46]_K/ {print $1, $2}' "$out" | sort)" "Q4_K 48
Q6_K 9" "tensors in Q6_K: the output matrix, values and down of four layers of eight"
    run 0 python3 "$make" --preset tiny --type q4_k_m --experts 6 --active 2 -o "$work/experts.gguf"
    run 0 "$TERN" bench --read 1M -m "$work/experts.gguf" -p 5 -n 3 -d 0 --kv l4 -r 1 --json
    same "$(json '#results' model.arch)" "2
qwen3moe" "bench of random experts"
    run 2 python3 "$make" --preset tiny --experts 6 -o "$work/experts.gguf"
    grep -q '0 of 6 experts cannot be active' "$err" || say "refuse experts of which none is active"
    run 2 python3 "$make" --type q6_k --ff 1000 -o "$work/random.gguf"
    grep -q 'ff is 1000, not a multiple of 256' "$err" || say "refuse what q6_k cannot hold"
fi

# ---- bench: where the time goes ----
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 5 -n 2 -d 0 --kv l4 -r 1 -t 1 --profile --json
same "$(json '#results' results.0.profile.steps results.1.profile.steps :results.0.profile.operations.0.seconds \
    :results.1.profile.prompt_products_per_s :results.1.profile.operations.0.what)" "2
1
2
real
real
string" "--profile"
run 0 "$TERN" bench --read 1M -m "$MODEL" -p 5 -n 2 -d 0 --kv l4 -r 1 -t 1 --profile
same "$(grep -c '^matmul' "$out" | awk '{ print ($1 > 4) }') $(grep -c '^limits: reading' "$out") $(grep -c '1 step,' "$out")" \
    "1 2 1" "--profile as a table"
bench_fails 2 "no --csv of it" --profile --csv

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
