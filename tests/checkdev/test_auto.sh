# The program chooses a device: --device auto and by name, on cards that are not real (fake_driver.c) and compute nothing.
# shellcheck source=SCRIPTDIR/../e2e/lib.sh
. "$E2E/lib.sh"

export FAKE_CUDA=
fallen="tern: running on the CPU, not on the card: "

device() {
    json device | cut -d: -f1
}

# It runs on the CPU; stderr is one line, which has the texts, and so has the report.
on_cpu() {
    same "$(device)" cpu "device"
    one_line "$fallen" "$@"
    for text in "$@"; do
        json device_reason | grep -qF -e "$text" || say "device_reason does not mention: $text"
    done
}

doctor() {
    run 0 "$TERN" doctor -m "$MODEL" -c 512 --packed off --json "$@"
}

# One note, among what a run says of itself.
fell() {
    same "$(grep -c "^$fallen" "$err")" 1 "notes of the device"
    for text in "$@"; do
        grep "^$fallen" "$err" | grep -qF -e "$text" || say "the note does not mention: $text"
    done
}

nothing() {
    grep -q "^$fallen" "$err" && say "a note, and no fallback"
    grep -q device_reason "$out" && say "a reason, and no fallback"
}

# One card that serves, and machines without one.
doctor
same "$(device)" cuda "device"
same "$(json kv.spec)" l4 "the plan of a card"
nothing
for FAKE_CUDA in none hidden; do
    doctor
    same "$(device)" cpu "device"
    same "$(json kv.spec)" t4 "the plan of the CPU"
    nothing
done
TERN_CUDA_DRIVER= doctor
same "$(device)" cpu "device"
nothing

# Cards that cannot be used, twice: the second run is as the first.
for i in 1 2; do
    FAKE_CUDA=old
    doctor
    on_cpu "compute capability 7.5"
    FAKE_CUDA=ancient
    doctor
    on_cpu "CUDA 11.4"
    FAKE_CUDA=locked
    doctor
    on_cpu "opening the card failed"
done
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw
fell "opening the card failed"
cp "$out" "$work/fallen"
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw --device cpu
nothing
cmp -s "$out" "$work/fallen" || say "another text than on the CPU"
run 1 "$TERN" run -m "$MODEL" -p "the quick" -n 4 --device cuda
one_line "opening the card failed"

# What the card refuses of a model or an engine.
FAKE_CUDA=small
doctor
on_cpu "no room for steps of 512 tokens" "--chunk"
FAKE_CUDA=
doctor --kv f16,max=128
on_cpu "keeps no first tokens"
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw --max-kv-size 128 --json # the default of where it runs
fell "--kv l4,max=128: " "keeps no first tokens"
same "$(json kv.spec)" t4,max=128 "the plan where it runs"
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw --max-kv-size 128 --keep 0 --json
same "$(json kv.spec)" l4,max=128,first=0 "the plan on a card"
run 0 "$TERN" bench -m "$MODEL" -p 8 -n 1 -r 1 --json
grep -q '"l4"' "$out" || say "bench without the plan of a card"
doctor --decode-bits 16
on_cpu "decode_bits = 16"
doctor --prompt-class int8
on_cpu "prompt_class"
run 1 "$TERN" run -m "$MODEL" -p x --kv t4,max=128 --device cuda
one_line "keeps no first tokens"
run 0 "$TERN" eval ppl -f "$E2E/lib.sh" -m "$MODEL" -c 256 --decode-bits 16 --json
fell "decode_bits"
run 0 "$TERN" bench -m "$MODEL" -p 8 -n 1 -r 1 --kv t4,max=128 --json
fell "keeps no first tokens"

# A card that a context fills, and which layers would fit.
FAKE_CUDA=nine
run 0 "$TERN" doctor -m "$MODEL" --rope-scaling linear,factor=200 --kv f32 -c 400000 --packed off --json
on_cpu "a context of 400000 tokens takes" "-c "

FAKE_CUDA=small
run 0 "$TERN" doctor -m "$MODEL" --fit 256 --in 70M
fell "--in is 70.0 MiB" "leave"
run 1 "$TERN" doctor -m "$MODEL" --fit 256 --in 70M --device cuda
one_line "--in is 70.0 MiB"

# What is the user's is told once, and not computed elsewhere.
FAKE_CUDA=
run 1 "$TERN" run -m "$work/none.gguf" -p x
one_line "none.gguf"
head -c 3000 "$MODEL" >"$work/short.gguf"
run 1 "$TERN" run -m "$work/short.gguf" -p x
one_line "short.gguf"
run 2 "$TERN" run -m "$MODEL" -p x --kv nonsense
one_line "nonsense"
run 1 "$TERN" run -m "$MODEL" -p x --draft mtp
one_line "mtp"

# Who says what a card shall do has named it.
run 1 "$TERN" run -m "$MODEL" -p x --gpu-memory 100K
one_line "weights take"
run 1 "$TERN" run -m "$MODEL" -p x --gpu-layers 1 --kv t4,max=128
one_line "keeps no first tokens"
doctor --gpu-layers 0
json device | grep -q "the CPU for" || say "the card has all layers"
doctor --gpus 2
json device | grep -q "2 cards together" || say "not two cards"
FAKE_CUDA=none
run 2 "$TERN" run -m "$MODEL" -p x --gpus 2
one_line "--gpus needs a card" "no card"
FAKE_CUDA=old
run 2 "$TERN" run -m "$MODEL" -p x --gpu-memory 1G
one_line "--gpu-memory needs a card" "7.5"

# A model that guesses goes along.
FAKE_CUDA=
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw --draft "$MODEL" --decode-bits 16
fell "decode_bits"
FAKE_CUDA=locked
run 0 "$TERN" run -m "$MODEL" -p "the quick" -n 4 -c 512 --raw --draft "$MODEL"
fell

finish
