# Options as mlx-lm and llama.cpp spell them, and a prompt that is kept between runs.
. "$(dirname "$0")/lib.sh"

run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10
reply=$(cat "$out")

# ---- other names for the same ----
while read -r options; do
    # shellcheck disable=SC2086
    run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" $options
    same "$(cat "$out")" "$reply" "the reply with $options"
done <<'LIST'
--n-predict 10
--predict=10
-n 10 --temperature 0
-n 10 --prefill-step-size 16
-n 10 --batch-size 64 --ubatch-size 32
-n 10 --repeat-last-n 32 --repetition-penalty 1
-n 10 --ctx-size 512
-n 10 --quantized-kv-start 0 --xtc-probability 0.0 --xtc-threshold 0.1 -ngl 0
-n 10 --kv-bits 4
-n 10 -ctk q4_0 -ctv q4_0
-n 10 -ctk q4_0 --cache-type-v=q4_1
LIST
run 0 "$TERN" run -m "$MODEL" -p "x" -n 4 --raw
raw=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p "x" -n 4 --ignore-chat-template
same "$(cat "$out")" "$raw" "--ignore-chat-template"
run 0 "$TERN" run -m "$MODEL" -p "hi" -n 10 --system "Be brief."
brief=$(cat "$out")
for o in --system-prompt -sys; do
    run 0 "$TERN" run -m "$MODEL" -p "hi" -n 10 $o "Be brief."
    same "$(cat "$out")" "$brief" "$o"
done
run 0 "$TERN" inspect "$MODEL" --kv-bits 4
one_line "--kv k=t4,v=t4" "like what was asked for"
run 0 "$TERN" inspect "$MODEL" -ctk q8_0 --json
same "$(json kv.spec)" "k=q8,v=f16" "one side alone"
run 0 "$TERN" inspect "$MODEL" -ctk f16 -ctv f16
[ -s "$err" ] && say "nothing to tell of what is the same"

# ---- coded from a length on: before it, the 16-bit cache; behind it, codes of what that held ----
long="$(printf 'word %.0s' $(seq 40))"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv f16 --json
raw=$(json text) full=$(json kv.bytes)
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv t3 --quantized-kv-start 400 --json
same "$(json text)" "$raw" "a reply that ends before the codes begin"
same "$(json kv.bytes)" "$full" "its memory"
same "$(json kv.start)" 400 "the length in the report"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv t3 --quantized-kv-start 70 --json
[ "$(json kv.bytes)" -lt "$full" ] || say "codes take less"
coded=$(json text)
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv t3 --quantized-kv-start 70 --chunk 7 --json
same "$(json text)" "$coded" "the reply with other chunks"
run 0 "$TERN" run -m "$MODEL" -p x -n 2 -c 128 --quantized-kv-start 5000
grep -q "nothing is coded" "$err" || say "a length behind the context is told"

# ---- a cache that forgets: what mlx-lm calls rotating ----
long="$(printf 'word %.0s' $(seq 300))"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --json
all=$(json kv.bytes)
whole=$(json text)
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --max-kv-size 100 --json
same "$(json kv.spec)" "t4,max=100" "the plan in the report"
[ "$(json kv.bytes)" -lt "$all" ] || say "what is forgotten takes no memory"
rotated=$(json text)
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --max-kv-size 100 --chunk 9 --json
same "$(json text)" "$rotated" "the reply with other chunks"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv t4,max=100,first=4 --json
same "$(json text)" "$rotated" "the same as a plan"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --max-kv-size 0 --json
same "$(json text)" "$whole" "0 keeps all"
run 0 "$TERN" run -m "$MODEL" -p x -n 2 --max-kv-size 4000 -c 128 --json
grep -q "ends before --max-kv-size" "$err" || say "a size beyond the context is told"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --max-kv-size 100 --keep 7 --quantized-kv-start 200 --json
same "$(json kv.spec)" "t4,max=100,first=7" "both at once"
same "$(json kv.start)" 200 "the length in the report"
printf '# a plan\nt4,max=100 # tokens\nfirst=7\n' >"$work/size.plan"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv "plan=$work/size.plan" --quantized-kv-start 200 --json
same "$(json kv.start)" 200 "a size from a plan file"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 10 --kv t4,max=80,max=100 --quantized-kv-start 200 --json
same "$(json kv.start)" 200 "the last of two sizes"
run 0 "$TERN" inspect "$MODEL" --max-kv-size 100 --keep 7 --json
same "$(json kv.layers.0.window)+$(json kv.layers.0.first)" "93+7" "window and first tokens of a layer"
run 0 "$TERN" inspect "$MODEL" --max-kv-size 100
grep -q "window 96 and the first 4" "$out" || say "inspect tells what is seen"
# A prompt that is kept between runs, beyond the size.
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 6 --max-kv-size 128 --prompt-cache "$work/rotated"
first=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 6 --max-kv-size 128 --prompt-cache "$work/rotated"
same "$(cat "$out")" "$first" "the reply from a prompt that was kept"
grep -q "prompt tokens were kept in" "$err" || say "tell how much was kept"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 6 --max-kv-size 192 --prompt-cache "$work/rotated"
grep -q "the prompt is read as a whole" "$err" || say "another size: read it anew"

# ---- XTC ----
run 0 "$TERN" run -m "$MODEL" -p x -n 10 --temp 1 --seed 1 --xtc-probability 1 --xtc-threshold 0.002
odd=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p x -n 10 --temp 1 --seed 1 --xtc-probability 1 --xtc-threshold 0.002
same "$(cat "$out")" "$odd" "the same seed"
run 0 "$TERN" run -m "$MODEL" -p x -n 10 --temp 1 --seed 1
[ "$(cat "$out")" = "$odd" ] && say "the top choices are excluded"

# ---- what is not here is refused, with the nearest thing ----
refused() {
    words=$1
    shift
    run 2 "$TERN" run -m "$MODEL" -p x -n 1 "$@"
    one_line "$1" "$words"
}
refused "2, 3, 4 or 8" --kv-bits 5
refused "--kv affine4" --kv-group-size 64
refused "one of them" --quantized-kv-start 5 --kv-when end
refused "from 0 to 1" --xtc-probability 1.5
refused "64 or more" --max-kv-size 63
refused "belongs to --max-kv-size" --keep 4
refused "no room" --max-kv-size 64 --keep 64
refused "from 0 to 64" --keep 65 --max-kv-size 200
refused "one of them" --max-kv-size 200 --kv t4,max=100
refused "one of them" --keep 3 --max-kv-size 200 --kv t4,first=5
refused "one of them" --max-kv-size 200 --kv "plan=$work/size.plan"
printf 't4\nfirst=5\n' >"$work/first.plan"
refused "one of them" --keep 3 --max-kv-size 200 --kv "plan=$work/first.plan"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 2 --max-kv-size 200 --kv "plan=$work/first.plan" --json
same "$(json kv.spec)" "plan=$work/first.plan,max=200" "a size beside a plan file without one"
printf 't4 # a plan\r\n\r\nmax=100 \r\n' >"$work/other.plan"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 2 --kv "plan=$work/other.plan" --quantized-kv-start 200 --json
same "$(json kv.start)" 200 "a size from a plan file of Windows"
refused "q8_0" -ctk q5_1
refused "processor" -ngl 99
refused "fetch-model" -hf somebody/something
refused "needs a value" --kv-bits
run 2 "$TERN" run -m "$MODEL" -p x --kv t4 --kv-bits 4
one_line "give one of them"
run 2 "$TERN" run -m "$MODEL" -p x --turbo-kv-bits 1
one_line "2 bits are the least"
# Behind -- nothing is an option, and commands without a cache know none of these names.
run 2 "$TERN" tokenize -m "$MODEL" --kv-bits 4
one_line "unknown"

# ---- --stop-token ----
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --logit-bias 74=400 --stop-token J --json
same "$(json text)$(json finish_reason)" "stop" "a token that ends the text"
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --logit-bias 74=400 --extra-eos-token J --json
same "$(json usage.completion_tokens)" "0" "the same under another name"
run 1 "$TERN" run -m "$MODEL" -p x -n 1 --stop-token "no token"
one_line "--stop-token" "--stop"

# ---- --prompt-cache ----
long="$(head -c 1000 "$0" | tr '\n' ' ')"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 12
whole=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 12 --prompt-cache "$work/kept"
same "$(cat "$out")" "$whole" "the reply while the prompt is kept"
[ -s "$work/kept" ] || say "write the file"
cp "$work/kept" "$work/kept.before"
run 0 "$TERN" run -m "$MODEL" -p "$long" -n 12 --prompt-cache-file "$work/kept" --json
same "$(json text)" "$whole" "the reply from a prompt that was kept"
same "$(json usage.prompt_tokens)" 1 "tokens that had to be read"
cmp -s "$work/kept" "$work/kept.before" || say "leave the file as it is"
run 0 "$TERN" run -m "$MODEL" -p "$long and more" -n 12
more=$(cat "$out")
run 0 "$TERN" run -m "$MODEL" -p "$long and more" -n 12 --prompt-cache "$work/kept"
same "$(cat "$out")" "$more" "a prompt that begins in the same way"
grep -q "prompt tokens were kept in" "$err" || say "tell how much was kept"
cmp -s "$work/kept" "$work/kept.before" && say "keep the longer prompt"
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --prompt-cache "$work/kept"
same "$(cat "$out")" "$reply" "another prompt"
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --prompt-cache "$work/kept" --kv q8
grep -q "the prompt is read as a whole" "$err" || say "another plan: read it anew"
echo "a letter" >"$work/letter"
for other in "$work/letter" /dev/null "$MODEL"; do # found out before anything is read
  run 1 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --prompt-cache "$other"
  checks=$((checks + 1))
  grep -qF "name another file" "$err" || say "stderr does not say what to do: $(cat "$err")"
done
same "$(cat "$work/letter")" "a letter" "a file of another kind stays"
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --prompt-cache "$work/talk"
echo "{}" >"$work/talk.turns.json"
run 1 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10 --prompt-cache "$work/talk"
checks=$((checks + 1))
grep -qF "a conversation that chat saved" "$err" || say "stderr does not name it: $(cat "$err")"
run 2 "$TERN" run -m "$MODEL" -p x --prompt-cache "$work/x" --kv-when end
one_line "--kv-when"
finish
