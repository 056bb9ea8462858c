# tern doctor --calibrate: writes a sidecar that plans use; sidecars that do not fit.
. "$(dirname "$0")/lib.sh"

cp "$MODEL" "$work/m.gguf"
run 0 "$TERN" inspect "$work/m.gguf" --kv l4
grep -q calibrated "$out" && say "not calibrated yet"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf"
grep -q "wrote $work/m.gguf.ternkv" "$err" || say "says what it wrote"
grep -q "keys calibrated" "$out" || say "the plan uses it at once"
run 0 "$TERN" inspect "$work/m.gguf" --kv l4
grep -q "keys calibrated" "$out" || say "later runs use it"
run 0 "$TERN" inspect "$work/m.gguf" --kv l4,cond=off
grep -q calibrated "$out" && say "unless told not to"
run 0 "$TERN" inspect "$work/m.gguf" --kv f16
grep -q calibrated "$out" && say "16-bit keys have no use for it"

# Another text, another place.
yes "a text of words and more words, again and again" | head -n 400 >"$work/text"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf" -f "$work/text" --out "$work/other"
run 0 "$TERN" inspect "$work/m.gguf" --kv "l4,cond=$work/other"
grep -q "keys calibrated" "$out" || say "a named file"
cmp -s "$work/other" "$work/m.gguf.ternkv" && say "another text gives other constants"

# Too little text.
echo "too short" >"$work/short"
run 1 "$TERN" doctor --calibrate -m "$work/m.gguf" -f "$work/short"
one_line "tern: " "at least 256 tokens"

# A sidecar that is damaged, foreign or of another model: said once, with what it costs, and the run goes on without;
# under strict it does not, and a file that the user names is wanted.
run 0 "$TERN" run -m "$work/m.gguf" -p x -n 8 --temp 0 --kv l4,cond=off
cp "$out" "$work/without"
cp "$work/m.gguf.ternkv" "$work/good"
# sidecar WORD: what lies there is not used
sidecar() {
    run 0 "$TERN" run -m "$work/m.gguf" -p x -n 8 --temp 0 --kv l4
    cmp -s "$out" "$work/without" || say "the text that cond=off gives"
    same "$(grep -c ternkv "$err")" 1 "lines about the sidecar"
    for word in "$1" "m.gguf.ternkv" "not used" "at 4 bits" "tern doctor --calibrate -m $work/m.gguf"; do
        grep -qF -e "$word" "$err" || say "mention $word"
    done
    run 0 "$TERN" inspect "$work/m.gguf" --kv l4
    one_line "tern: " "$1"
    run 0 "$TERN" inspect "$work/m.gguf" --kv l4 --json
    case $(json kv.notes.0) in *"$1"*) ;; *) say "a note" ;; esac
    run 1 "$TERN" run -m "$work/m.gguf" -p x --kv l4 --kv-policy strict
    one_line "strict" "$1"
    run 1 "$TERN" run -m "$work/m.gguf" -p x --kv "l4,cond=$work/m.gguf.ternkv"
    one_line "$1" "cond=off goes without"
    run 0 "$TERN" run -m "$work/m.gguf" -p x -n 2 --kv l4,cond=off --kv-policy strict
    run 0 "$TERN" run -m "$work/m.gguf" -p x -n 2 --kv f16
    grep -q ternkv "$err" && say "16-bit keys have no use for it"
}
printf x >>"$work/m.gguf.ternkv"
sidecar "damaged"
head -c 20 "$work/good" >"$work/m.gguf.ternkv"
sidecar "not a key conditioning file"
: >"$work/m.gguf.ternkv"
sidecar "not a key conditioning file"
echo "a text of somebody's" >"$work/m.gguf.ternkv"
sidecar "not a key conditioning file"
run 1 "$TERN" doctor --calibrate -m "$work/m.gguf" # not over somebody's text
one_line "is not a key conditioning file; --force"
rm "$work/m.gguf.ternkv"
mkdir "$work/m.gguf.ternkv"
sidecar "is a directory"
rmdir "$work/m.gguf.ternkv"
cp "$work/good" "$work/m.gguf.ternkv"
printf x >>"$work/m.gguf.ternkv"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf" # written anew over a damaged one
cp "$work/other" "$work/base.gguf.ternkv" # the tiny model is another one
cp "$TEST_DATA/tiny/llama-tied.gguf" "$work/base.gguf"
run 0 "$TERN" inspect "$work/base.gguf" --kv l4
one_line "tern: " "another model" "not used"

# A session that was saved before its model was calibrated: the refusal names the conditioning of both.
rm "$work/m.gguf.ternkv"
run_with_input 0 "hello
/save $work/s" "$TERN" chat -m "$work/m.gguf" -n 4 --temp 0
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf"
run_with_input 1 "/load $work/s" "$TERN" chat -m "$work/m.gguf"
one_line "was saved with --kv t4 (keys as they are), this engine runs --kv t4 (keys calibrated, " "cond=off"
run_with_input 0 "/load $work/s" "$TERN" chat -m "$work/m.gguf" --kv t4,cond=off --system "Be brief."
grep -q -e "--system changes nothing" "$err" || say "tell that --system is not used"

# The first use of a model: calibrated when it is asked for or large, once, and only where keys are coded.
cp "$MODEL" "$work/new.gguf"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4
[ -e "$work/new.gguf.ternkv" ] && say "small models are left as they are"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv f16 --calibration now
[ -e "$work/new.gguf.ternkv" ] && say "16-bit keys have no use for it"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4 --calibration off
[ -e "$work/new.gguf.ternkv" ] && say "off is off"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4 --calibration now
grep -q "tern: calibrated the keys of this model, once, .*new.gguf.ternkv" "$err" || say "tells what it did"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4 --calibration now
grep -q "calibrated" "$err" && say "once"
run 0 "$TERN" doctor --calibrate -m "$work/m.gguf"
cmp "$work/new.gguf.ternkv" "$work/m.gguf.ternkv" || say "the constants of doctor --calibrate"
printf x >>"$work/new.gguf.ternkv"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4 --calibration now
grep -q "written anew, because .*damaged" "$err" || say "a damaged one is replaced"
cmp "$work/new.gguf.ternkv" "$work/m.gguf.ternkv" || say "as good as new"
printf 'a letter to my aunt' >"$work/new.gguf.ternkv"
run 0 "$TERN" run -m "$work/new.gguf" -p x -n 2 --kv l4 --calibration now
grep -q "keys not calibrated" "$err" || say "a file of another kind is left"
same "$(cat "$work/new.gguf.ternkv")" "a letter to my aunt" "the letter"
mkdir "$work/large"
"$MAKE_TEXT_MODEL" --large "$work/large/m.gguf"
run 0 "$TERN" run -m "$work/large/m.gguf" -p x -n 2 --packed off
[ -e "$work/large/m.gguf.ternkv" ] || say "a large model is calibrated unasked"

# doctor measures before it says ok.
run 0 "$TERN" doctor -m "$work/m.gguf"
grep -q "^divergence  .* nats per token from a 16-bit cache" "$out" || say "a divergence"
run 0 "$TERN" doctor -m "$work/m.gguf" --kv f16
grep -q "^divergence" "$out" && say "nothing is coded"
"$MAKE_TEXT_MODEL" --bias "$work/bias.gguf"
run 0 "$TERN" doctor -m "$work/bias.gguf"
grep -q "keys centred by the key bias" "$out" || say "a key bias conditions keys"
run 1 "$TERN" doctor -m "$work/bias.gguf" --kv t4,cond=off
grep -q "^verdict  .*nats per token" "$out" || say "a divergence that is out of order"
one_line "tern: " "k=q8,v=t4"
run 0 "$TERN" doctor -m "$work/m.gguf" --json
json kv.kld >/dev/null || say "in the JSON too"

# Options that belong together.
run 2 "$TERN" doctor --calibrate
run 2 "$TERN" doctor -m "$work/m.gguf" -f "$work/text"
run 2 "$TERN" doctor -m "$work/m.gguf" --out "$work/x"

# --force means files that are asked for: a calibration that nobody asked for replaces nothing.
echo "not to be lost" >"$work/m.gguf.ternkv"
run_with_input 0 "Who goes there?
" "$TERN" chat -m "$work/m.gguf" --kv t4 --calibration now -n 2 --force
same "$(cat "$work/m.gguf.ternkv")" "not to be lost" "a file under the sidecar's name"
rm "$work/m.gguf.ternkv"
# A plan for a budget: fits it, and can be run; a budget that nothing fits is refused with the numbers.
run 0 "$TERN" doctor --fit 8K --in 1M -m "$work/m.gguf" --out "$work/plan"
grep -q '^layers=' "$work/plan" || say "rules for layers"
run 0 "$TERN" inspect "$work/m.gguf" --kv "plan=$work/plan,cond=off" -c 8192 --json
bytes=$(json kv.full_bytes)
[ "${bytes%.*}" -le 1048576 ] || say "a plan that fits: $bytes"
# What the allocator counts of a full context, open pages and first tokens among it.
run 0 "$TERN" run -m "$work/m.gguf" -p x -n 2 --kv "plan=$work/plan,cond=off" --json
bytes=$(json kv.full_bytes)
[ "$bytes" -le 1048576 ] || say "a plan that fits, open pages and all: $bytes"
run 0 "$TERN" run -m "$work/m.gguf" -p x -n 2 --kv "plan=$work/plan,cond=off"
run 0 "$TERN" doctor --fit 32K --in 1g -m "$work/m.gguf"
grep -q "trained for 8192 tokens.*factor=4" "$err" || say "a context beyond the trained one"
run 0 "$TERN" doctor --fit 8192 --in 1g -m "$work/m.gguf"
grep -q "trained for" "$err" && say "nothing to warn of"
same "$(grep -v '^#' "$out")" "f16" "room for 16 bits"
run 1 "$TERN" doctor --fit 8K --in 100K -m "$work/m.gguf"
one_line "tern: " "at least"
run 2 "$TERN" doctor --fit 8K -m "$work/m.gguf"
run 2 "$TERN" doctor --fit 8Q --in 1M -m "$work/m.gguf"
run 2 "$TERN" doctor --fit 8K --in 1M --calibrate -m "$work/m.gguf"
run 1 "$TERN" inspect "$work/m.gguf" --kv "plan=$work/none"
one_line "tern: " "$work/none"

# The names of other engines.
run 0 "$TERN" inspect "$work/m.gguf" --turbo-kv-bits 4 --turbo-v-bits 3 --turbo-fp16-layers 1
grep -q "layers 1  *k=l4  *v=l3" "$out" || say "plan from bits"
grep -q "layers 0  *k=f16" "$out" || say "16-bit edges"
run 2 "$TERN" inspect "$work/m.gguf" --turbo-kv-bits 5
run 2 "$TERN" inspect "$work/m.gguf" --turbo-v-bits 4
run 2 "$TERN" inspect "$work/m.gguf" --turbo-kv-bits 4 --kv l4
finish
