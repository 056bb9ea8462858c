# tern chat through a pipe: turns, commands, saved sessions.
. "$(dirname "$0")/lib.sh"

# chat INPUT ARGUMENTS...: status 0
chat() {
    input=$1
    shift
    run_with_input 0 "$input" "$TERN" chat -m "$MODEL" -n 10 --temp 0 "$@"
}

# ---- one turn is what run prints ----
run 0 "$TERN" run -m "$MODEL" -p "Who goes there?" -n 10
first=$(cat "$out")
chat "Who goes there?
"
same "$(cat "$out")" "$first" "the first reply"
chat "Who goes there?"
same "$(cat "$out")" "$first" "a line without its end"
chat ""
silent
chat "

"
silent
printf '  \n\t\n"""\n\n \n"""\n\\\n ' >"$work/blank"
chat "$(cat "$work/blank")
/stats
"
silent
grep -q "0 of 8192 tokens, 0 turns" "$err" || say "lines of blanks are no messages"

# ---- two turns in the cache are the two turns rendered as a whole ----
# With --exact and 16-bit KV the decode steps compute what a prompt would.  The first reply's tokens may be spelled in
# another way when its text is read again, so letters are asked for that have only one spelling.
bias="--logit-bias 74=400 --exact --kv f16"
# shellcheck disable=SC2086
chat "hello
and?
" $bias
cp "$out" "$work/two"
same "$(head -n 1 "$work/two")" "JJJJJJJJJJ" "a biased reply"
# shellcheck disable=SC2086
run 0 "$TERN" run -m "$MODEL" -n 10 --raw $bias --json -p "<|im_start|>user
hello<|im_end|>
<|im_start|>assistant
JJJJJJJJJJ<|im_end|>
<|im_start|>user
and?<|im_end|>
<|im_start|>assistant
"
same "$(json text)" "$(tail -n +2 "$work/two")" "the second reply"
whole=$(json usage.prompt_tokens)
# shellcheck disable=SC2086
chat "hello
and?
/stats
" $bias
grep -q "$((whole + 10)) of 8192 tokens, 4 turns" "$err" || say "hold $((whole + 10)) tokens"

# ---- a saved session goes on token for token, in another process ----
for sampling in "" "--temp 1 --seed 5"; do
    # shellcheck disable=SC2086
    chat "one fish
two fish
red fish
" $sampling
    cp "$out" "$work/straight"
    # shellcheck disable=SC2086
    chat "one fish
two fish
/save $work/session
" $sampling
    cp "$out" "$work/begun"
    [ -s "$work/session" ] && [ -s "$work/session.turns.json" ] || say "write both files"
    "$JSON_GET" '#turns' <"$work/session.turns.json" >"$work/turns" || say "valid JSON"
    same "$(cat "$work/turns")" 4 "turns saved"
    # shellcheck disable=SC2086
    chat "/load $work/session
red fish
/stats
" $sampling
    cat "$work/begun" "$out" >"$work/joined"
    cmp -s "$work/straight" "$work/joined" || say "continue as if it had not been interrupted"
    grep -q 'restored' "$err" || say "tell that it restored"
done

# ---- what does not belong together is refused and the session stays ----
refused() {
    word=$1
    shift
    run_with_input 1 "Who goes there?
/load $1
/stats
" "$TERN" chat -m "$MODEL" -n 10 --temp 0
    same "$(cat "$out")" "$first" "the reply before"
    grep -qF -e "$word" "$err" || say "mention $word"
    grep -q '2 turns' "$err" || say "keep the session"
}
refused "none" "$work/none"
chat "something else
/save $work/other
"
cp "$work/other" "$work/mixed"
cp "$work/session.turns.json" "$work/mixed.turns.json"
refused "belong together" "$work/mixed"
head -c 200 "$work/session" >"$work/cut"
cp "$work/session.turns.json" "$work/cut.turns.json"
refused "cut" "$work/cut"
cp "$work/session" "$work/torn"
head -c 100 "$work/session.turns.json" >"$work/torn.turns.json"
refused "torn.turns.json" "$work/torn"
cp "$work/session" "$work/odd"
echo '{"format": "something"}' >"$work/odd.turns.json"
refused "odd.turns.json" "$work/odd"
run_with_input 1 "/load $work/session
" "$TERN" chat -m "$MODEL" --kv q8
one_line "session"

# ---- commands ----
chat "Who goes there?
/reset
Who goes there?
"
same "$(cat "$out")" "$first
$first" "the reply after /reset"
chat "/help
"
for c in /reset /save /load /kv /stats /quit; do
    grep -q "^$c" "$err" || say "list $c"
done
chat "/quit
Who goes there?
"
silent
for c in /frobnicate /save "/reset now" "/save $work/no-such-dir/x"; do
    run_with_input 1 "$c
Who goes there?
" "$TERN" chat -m "$MODEL" -n 10 --temp 0
    same "$(cat "$out")" "$first" "the reply after a bad command"
    same "$(grep -c '^tern: ' "$err")" 2 "one line about $c, one about the length"
done

# ---- /kv: another plan where the conversation stands ----
long="$(printf 'word %.0s' $(seq 40))"
run_with_input 0 "$long
/stats
/kv f16
/stats
/kv f16
And now?
" "$TERN" chat -m "$MODEL" -n 10 --temp 0 --kv t4
grep -q "^tern: --kv f16 from here on: [0-9]* tokens, KV .*, before " "$err" || say "the new plan is told"
grep -q "what they had rounded away stays lost" "$err" || say "what codes cost is told"
grep -q "has that plan already" "$err" || say "the same plan twice"
grep -q "(1x less" "$err" || say "/stats of the new plan"
run_with_input 0 "$long
/kv t4
/reset
$long
/stats
" "$TERN" chat -m "$MODEL" -n 10 --temp 0 --kv f16
grep -q "stays lost" "$err" && say "16 bits have lost nothing"
grep -q "(1x less" "$err" && say "the plan holds after /reset"
run_with_input 1 "/kv
/kv t9
Who goes there?
" "$TERN" chat -m "$MODEL" -n 10 --temp 0
same "$(cat "$out")" "$first" "the reply after a plan that is none"
grep -q "/kv needs a plan" "$err" || say "a plan is missing"
grep -q 'unknown scheme "t9"' "$err" || say "a plan that is none"

# ---- messages of several lines ----
run 0 "$TERN" run -m "$MODEL" -n 10 -p "one
two"
two_lines=$(cat "$out")
chat 'one\
two
'
same "$(cat "$out")" "$two_lines" "a joined line"
chat '"""
one
two
"""
'
same "$(cat "$out")" "$two_lines" "a block"
run 0 "$TERN" run -m "$MODEL" -n 10 -p "/etc"
slash=$(cat "$out")
chat "//etc
"
same "$(cat "$out")" "$slash" "a message that begins with a slash"

# ---- a system turn, a stop string, a full context ----
run 0 "$TERN" run -m "$MODEL" -n 10 -p "hi" --system "Be brief."
brief=$(cat "$out")
chat "hi
/reset
hi
" --system "Be brief."
same "$(cat "$out")" "$brief
$brief" "replies with a system turn"
chat "hello
and?
" --logit-bias 98=500 --stop bbb
same "$(wc -c <"$out")" 2 "bytes of two replies that a stop string cut to nothing"
# What the stop string cut off leaves the cache again: the conversation is as long as its text, and three tokens.
run 0 "$TERN" run -m "$MODEL" -n 0 --raw --json -p "<|im_start|>user
hello<|im_end|>
<|im_start|>assistant
<|im_end|>
<|im_start|>user
and?<|im_end|>
<|im_start|>assistant
"
whole=$(json usage.prompt_tokens)
chat "hello
and?
/stats
" --logit-bias 98=500 --stop bbb
grep -q "$((whole + 3)) of 8192 tokens, 4 turns" "$err" || say "hold $((whole + 3)) tokens"
run_with_input 1 "$(cat "$0")
hi
" "$TERN" chat -m "$MODEL" -n 10 -c 64
grep -q 'context' "$err" || say "tell that a message does not fit"

# ---- what a model that recommends no sampling is asked with ----
chat "hi
" --verbose
grep -q "seed" "$err" && say "--temp 0 draws no random numbers"
run_with_input 0 "hi
" "$TERN" chat -m "$MODEL" -n 2 --verbose
grep -q "tern: seed" "$err" || say "a temperature where nobody says one"

# ---- a reply that repeats itself is ended, and not remembered over and over ----
run_with_input 0 "talk
/stats
" "$TERN" chat -m "$MODEL" --logit-bias 74=400 --kv f16
grep -q "repeated itself" "$err" || say "tell that the reply repeats itself"
[ "$(wc -c <"$out")" -lt 400 ] || say "end it soon"
run_with_input 0 "talk
/save $work/loop
" "$TERN" chat -m "$MODEL" --logit-bias 74=400 --kv f16
same "$("$JSON_GET" turns.1.content <"$work/loop.turns.json")" "J" "what is remembered of it"
run_with_input 0 "talk
" "$TERN" chat -m "$MODEL" --logit-bias 74=400 --kv f16 -n 1000 --loops allow
same "$(wc -c <"$out")" 1001 "bytes of a reply that may repeat itself"
run_with_input 2 "" "$TERN" chat -m "$MODEL" -n 0

# ---- /undo and /retry ----
chat "Who goes there?
/save $work/once
and now?
/undo
/save $work/undone
/retry
/save $work/retried
"
same "$("$JSON_GET" turns <"$work/undone.turns.json")" "$("$JSON_GET" turns <"$work/once.turns.json")" "turns after /undo"
same "$("$JSON_GET" turns <"$work/retried.turns.json")" "$("$JSON_GET" turns <"$work/once.turns.json")" "turns after /retry"
chat "Who goes there?
and now?
" --kv f16 --exact
last=$(tail -n 1 "$out")
chat "Who goes there?
something else
/undo
and now?
" --kv f16 --exact
same "$(tail -n 1 "$out")" "$last" "the reply after /undo"
for c in /undo /retry; do
    run_with_input 1 "$c
" "$TERN" chat -m "$MODEL" -n 10
    one_line "there is no"
done

# ---- a full context ----
# A system turn, the first exchange, and as many of the newest as there is room for.
for i in 0 1 2 3 4 5 6 7 8 9; do echo "message number $i"; done >"$work/ten"
echo "/save $work/full" >>"$work/ten"
full() {
    run_with_input "$1" "$(cat "$work/ten")
" "$TERN" chat -m "$MODEL" -n 10 --temp 0 -c 256 --system "Be brief." --context-full "$2"
}
full 0 drop
same "$(wc -l <"$out")" 10 "replies to all ten messages"
grep -q "the context of 256 tokens is full: forgot the [0-9]* oldest exchange" "$err" || say "one line about it"
same "$("$JSON_GET" turns.0.content <"$work/full.turns.json")" "Be brief." "the system turn"
same "$("$JSON_GET" turns.1.content <"$work/full.turns.json")" "message number 0" "the first message"
n=$("$JSON_GET" '#turns' <"$work/full.turns.json")
same "$("$JSON_GET" "turns.$((n - 2)).content" <"$work/full.turns.json")" "message number 9" "the last message"
[ "$n" -lt 21 ] || say "forget something"
full 1 stop
grep -q "/reset begins anew" "$err" || say "refuse with stop"
# In the middle of a reply, with shift: it goes on to its limit.
run_with_input 0 "talk
" "$TERN" chat -m "$MODEL" -n 500 --logit-bias 74=400 -c 256 --context-full shift --loops allow
same "$(wc -c <"$out")" 501 "bytes of a reply longer than the context"
run_with_input 0 "talk
" "$TERN" chat -m "$MODEL" -n 500 --logit-bias 74=400 -c 256 --loops allow
grep -q "the next message makes room" "$err" || say "tell that the context is full"
# A message that fits in no context takes nothing away.
run_with_input 1 "hi
$(head -c 2000 "$0" | tr '\n' ' ')
/stats
" "$TERN" chat -m "$MODEL" -n 10 -c 256
grep -q "this message alone needs" "$err" || say "tell that it does not fit"
grep -q "2 turns" "$err" || say "keep the conversation"

# ---- Ctrl-C ends the reply and keeps the session ----
mkfifo "$work/pipe"
"$TERN" chat -m "$MODEL" --loops allow --exact --cpu-mask c -n 8000 --logit-bias 74=400 <"$work/pipe" >"$out" 2>"$err" &
pid=$!
exec 3>"$work/pipe"
command_line="tern chat <pipe, kill -INT"
echo "talk" >&3
tries=0
while [ $tries -lt 1200 ] && [ "$(wc -c <"$out")" -lt 3 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
kill -INT $pid
tries=0
while [ $tries -lt 1200 ] && ! grep -q 'stopped' "$err"; do
    sleep 0.05
    tries=$((tries + 1))
done
echo "/stats" >&3
exec 3>&-
wait $pid
same $? 0 "status of a chat whose reply was stopped"
grep -q '2 turns' "$err" || say "keep the session after Ctrl-C"
grep -q '^JJJ*$' "$out" || say "keep the text so far"

finish
