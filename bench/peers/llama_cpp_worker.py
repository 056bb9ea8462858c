"""Measures llama-cpp-python on request; bench/peers/compare starts it in the peer's virtual environment.

    python llama_cpp_worker.py MODEL THREADS CONTEXT KV

Commands on standard input, one line of answer each:
    depth N    the cache holds N tokens from here on (it only grows)       -> "ok"
    pp N       a prompt of N tokens after those, once                      -> seconds
    tg N       N tokens after those, one at a time, once                   -> seconds
What pp and tg add is forgotten.  The first line is "ready" or says what went wrong.
"""
import ctypes
import random
import sys
import time

import llama_cpp as ll

STEP = 512  # tokens of a prompt in one call
KV_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}
BASE, WORK = 0, 1  # sequences


class Peer:
    def __init__(self, path, threads, n_ctx, kv):
        ll.llama_backend_init()
        m = ll.llama_model_default_params()
        m.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(path.encode(), m)
        if not self.model:
            sys.exit("the peer cannot open the model")
        c = ll.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max = n_ctx, STEP, STEP, 2
        c.n_threads = c.n_threads_batch = threads
        c.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED
        c.type_k = c.type_v = KV_TYPES[kv]
        c.kv_unified = True  # the two sequences share cells
        self.ctx = ll.llama_init_from_model(self.model, c)
        if not self.ctx:
            sys.exit("the peer cannot make a context")
        self.memory = ll.llama_get_memory(self.ctx)
        self.batch = ll.llama_batch_init(STEP, 0, 1)
        rng = random.Random(1)
        n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.ids = [rng.randrange(n_vocab) for _ in range(n_ctx)]
        self.depth = 0

    def decode(self, sequence, pos, n):
        b = self.batch
        b.n_tokens = n
        for i in range(n):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = self.ids[pos + i], pos + i, 1, i == n - 1
            b.seq_id[i][0] = sequence
        if ll.llama_decode(self.ctx, b):
            sys.exit(f"the peer cannot decode {n} tokens at {pos}")
        ll.llama_synchronize(self.ctx)

    def feed(self, sequence, pos, n, step):
        for i in range(0, n, step):
            self.decode(sequence, pos + i, min(step, n - i))

    def deepen(self, depth):
        self.feed(BASE, self.depth, depth - self.depth, STEP)
        self.depth = depth

    def time(self, n, step):
        if self.depth:
            ll.llama_memory_seq_cp(self.memory, BASE, WORK, 0, self.depth)
        start = time.perf_counter()
        self.feed(WORK, self.depth, n, step)
        seconds = time.perf_counter() - start
        if not ll.llama_memory_seq_rm(self.memory, WORK, -1, -1):
            sys.exit("the peer cannot forget a sequence")
        return seconds


@ll.llama_log_callback
def errors_only(level, text, _user):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


def main():
    path, threads, n_ctx, kv = sys.argv[1:]
    ll.llama_log_set(errors_only, ctypes.c_void_p(0))
    peer = Peer(path, int(threads), int(n_ctx), kv)
    print("ready", flush=True)
    for line in sys.stdin:
        command, n = line.split()
        if command == "depth":
            peer.deepen(int(n))
            print("ok", flush=True)
        else:
            print(f"{peer.time(int(n), STEP if command == 'pp' else 1):.9f}", flush=True)


if __name__ == "__main__":
    main()
