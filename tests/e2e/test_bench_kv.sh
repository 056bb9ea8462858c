# tern bench kv: what it reports and refuses, not how fast it is.
. "$(dirname "$0")/lib.sh"

small="--head-dim 64 --heads 6 --kv-heads 3 -c 200 --layers 2 -r 2 --read 4M"

# ---- the table ----
# shellcheck disable=SC2086
run 0 "$TERN" bench kv $small -t 2
same "$(cat "$err")" "" "stderr"
grep -q '^2 layers, 6 heads of 64, 3 KV heads, 200 tokens, 2 threads; reading alone ' "$out" || say "tell the geometry"
same "$(tail -n +3 "$out" | cut -d' ' -f1 | tr '\n' ' ')" "f16 q8 l4 l3 l2 t4 t3 t2 " "the rows"
same "$(tail -n +3 "$out" | awk 'NF != 10' | wc -l | tr -d ' ')" 0 "rows of another number of columns"

# ---- the object ----
# f16 stands first, whether it was asked for or not.
# shellcheck disable=SC2086
run 0 "$TERN" bench kv $small -t 1 --json --kv l4 --kv k=q8,v=l3,first=0 --cpu-mask $simd
same "$(json :machine.cpu :machine.isa)" "string
string" "the machine"
same "$(json '#results' results.0.kv.spec results.1.kv.spec results.2.kv.spec machine.threads geometry.head_dim geometry.n_heads \
    geometry.n_kv_heads geometry.ctx geometry.n_layers :peak_memory_bytes)" "3
f16
l4
k=q8,v=l3,first=0
1
64
6
3
200
2
integer" "the report"
i=0
while [ $i -lt 3 ]; do
    for field in ms_per_step x_f16 read_share encode_us_per_token; do
        same "$(json :results.$i.$field.median :results.$i.$field.min :results.$i.$field.max)" "real
real
real" "$field of result $i"
    done
    same "$(json :results.$i.bytes :results.$i.bytes_per_element :results.$i.ns_per_element :results.$i.gb_per_s \
        :results.$i.error results.$i.elements results.$i.reps)" "real
real
real
real
real
153600.0
2" "result $i"
    i=$((i + 1))
done
same "$(json :read_gb_per_s.median :read_gb_per_s.min :read_gb_per_s.max)" "real
real
real" "the speed of reading alone"
same "$(json results.0.bytes results.0.error results.0.x_f16.median)" "307200.0
0.0
1.0" "f16 against itself"
# 3 pages in codes; 8 tokens of the open page and 4 first ones in 16 bits.
same "$(json results.1.bytes results.2.bytes)" "$((6 * (3 * 64 * 68 + 12 * 256))).0
$((6 * (3 * 64 * (66 + 26) + 8 * 256))).0" "bytes of the coded plans"

# ---- presets, and options that change them ----
run 0 "$TERN" bench kv --preset smollm2 -c 100 --layers 1 -r 1 --read 1M --json --kv f16,l2
same "$(json '#results' geometry.head_dim geometry.n_heads geometry.n_kv_heads geometry.ctx geometry.n_layers)" "2
64
9
3
100
1" "a preset"
run 0 "$TERN" bench kv -c 100 --layers 1 -r 1 --read 1M --json --kv l4
same "$(json geometry.head_dim geometry.n_heads geometry.n_kv_heads)" "128
32
8" "the default geometry"

# ---- comma-separated values ----
# shellcheck disable=SC2086
run 0 "$TERN" bench kv $small -t 1 --kv l4,t2 --csv
same "$(head -n 1 "$out" | cut -d, -f1-8)" "kv,threads,head_dim,heads,kv_heads,ctx,layers,ms_per_step" "the columns"
same "$(tail -n +2 "$out" | cut -d, -f1-7 | tr '\n' ' ')" '"f16",1,64,6,3,200,2 "l4",1,64,6,3,200,2 "t2",1,64,6,3,200,2 ' \
    "the rows"
same "$(awk -F, '{ print NF }' "$out" | sort -u)" 26 "values in every line"

# ---- what cannot be ----
# refused STATUS TEXT ARGUMENTS...
refused() {
    expected=$1
    text=$2
    shift 2
    run "$expected" "$TERN" bench kv "$@"
    silent
    one_line "$text"
}
refused 2 "10 heads are not a multiple of 3 KV heads" --heads 10 --kv-heads 3
refused 1 "--kv q8 cannot have heads of 40: the head size is not a multiple of 16" --head-dim 40
refused 1 "--kv k=f16,v=l4 cannot have heads of 352: the head size has an odd factor" --head-dim 352 --kv k=f16,v=l4
refused 1 "not a multiple of 8" --head-dim 12
refused 2 "unknown scheme \"q4\"" --kv q4
refused 2 "layer 9 does not exist" --kv l4,layers=9:f16
refused 2 "cond wants a model" --kv l4,cond=norms --kv k=l4,v=l4,cond=norms
refused 1 "GiB and the machine has" -c 16777216 --layers 1000
refused 2 "--head-dim" --head-dim 513
refused 2 "--ctx" -c 64
refused 2 "--preset" --preset gpt
refused 2 "--read must be a number" --read 0
refused 2 "4096 bytes are too few to measure reading" --read 4K
refused 2 "empty plan" --kv f16,
refused 2 "exclude each other" --json --csv
refused 2 "unknown option" -m model.gguf

finish
