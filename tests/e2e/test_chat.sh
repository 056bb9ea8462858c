# tern chat through a pipe: turns, commands, saved sessions.
. "$(dirname "$0")/lib.sh"

# chat INPUT ARGUMENTS...: status 0
chat() {
    input=$1
    shift
    run_with_input 0 "$input" "$TERN" chat -m "$MODEL" -n 10 "$@"
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
" "$TERN" chat -m "$MODEL" -n 10
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
for c in /reset /save /load /stats /quit; do
    grep -q "^$c" "$err" || say "list $c"
done
chat "/quit
Who goes there?
"
silent
for c in /frobnicate /save "/reset now" "/save $work/no-such-dir/x"; do
    run_with_input 1 "$c
Who goes there?
" "$TERN" chat -m "$MODEL" -n 10
    same "$(cat "$out")" "$first" "the reply after a bad command"
    same "$(grep -c '^tern: ' "$err")" 2 "one line about $c, one about the length"
done

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

# ---- Ctrl-C ends the reply and keeps the session ----
mkfifo "$work/pipe"
"$TERN" chat -m "$MODEL" --exact --cpu-mask c -n 8000 --logit-bias 74=400 <"$work/pipe" >"$out" 2>"$err" &
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
