"""lm-evaluation-harness over HTTP (its `local-completions`, unchanged) against the same tasks computed without a server, by
`tern eval logits` and `tern run`: every number and every answer must be the same, not nearly the same.  Run by
tests/clients/run; TERN_EVAL_MODEL names another model than the tests' own, whose numbers say nothing.
"""
import json
import math
import os
import subprocess
import tempfile

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.setdefault("HF_HOME", tempfile.mkdtemp())
import lm_eval
import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, make_table

from serve_lib import MODEL, TERN, Server, check, finish, same

HERE = os.path.dirname(os.path.abspath(__file__))
TASKS = ["tern_choice", "tern_last_word", "tern_text", "tern_answer"]
FILE = os.environ.get("TERN_EVAL_MODEL", MODEL)
MAX_LENGTH = 1024


def tern(*args, text=""):
    r = subprocess.run([TERN, *args], input=text.encode(), capture_output=True)
    if r.returncode:
        raise RuntimeError(f"tern {' '.join(args)}: {r.stderr.decode()}")
    return r.stdout.decode()


class Alone(TemplateLM):
    """The program without a server."""

    def __init__(self, eos):
        super().__init__()
        self.work = tempfile.TemporaryDirectory()
        self.eos = eos

    @property
    def eot_token_id(self):
        return self.eos

    def tok_encode(self, string, add_special_tokens=None, **_):
        ids = tern("tokenize", "-m", FILE, "--ids", "--no-special", text=string).strip()
        return [int(i) for i in ids.split(",")] if ids else []

    def _loglikelihood_tokens(self, requests, **_):
        return [self.score(context, continuation) for _, context, continuation in requests]

    def score(self, context, continuation):
        ids = (context + continuation)[-(MAX_LENGTH - 1):]
        out, listed = os.path.join(self.work.name, "logits.npy"), os.path.join(self.work.name, "ids")
        with open(listed, "w", encoding="ascii") as f:
            f.write(",".join(map(str, ids)))
        tern("eval", "logits", "-m", FILE, "--ids", "@" + listed, "--out", out, "--force")
        logits, total, greedy = np.load(out), [], True
        for i in range(len(ids) - len(continuation), len(ids)):
            row = logits[i - 1]
            most = float(row.max())
            mass = 0.0
            for x in row.tolist():
                mass += math.exp(x - most)
            of = lambda x: -(most + math.log(mass) - x)
            total.append(of(float(row[ids[i]])))
            greedy &= total[-1] == of(most)
        return sum(total), greedy

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        out = []
        for r in requests:
            windows = map(make_disjoint_window, get_rolling_token_windows(
                self.tok_encode(r.args[0]), self.prefix_token_id, MAX_LENGTH - 1, 1))
            out.append(sum(self.score(a, b)[0] for a, b in windows))
        return out

    def generate_until(self, requests, disable_tqdm=False):
        out = []
        for r in requests:
            text, more = r.args
            stops = [x for s in more["until"] for x in ("--stop", s)]
            out.append(tern("run", "-m", FILE, "--raw", "-p", text, "-n", str(more["max_gen_toks"]), "--temp", "0", *stops))
        return [t[:-1] if t.endswith("\n") else t for t in out]


def evaluate(model, **more):
    manager = TaskManager(include_path=os.path.join(HERE, "tasks"), include_defaults=False)
    return lm_eval.simple_evaluate(model=model, tasks=TASKS, task_manager=manager, bootstrap_iters=100, log_samples=True, **more)


def numbers(result):
    return {t: {k: v for k, v in r.items() if "," in k} for t, r in result["results"].items()}


def answers(result):
    return {t: [(s["doc_id"], s["resps"]) for s in sorted(samples, key=lambda s: s["doc_id"])]
            for t, samples in result["samples"].items()}


os.chdir(os.path.join(HERE, "tasks"))
with Server("--ctx", str(MAX_LENGTH), model=FILE) as s:
    name = s.get("/v1/models").json["data"][0]["id"]
    eos = s.get("/tokenizer_info").json["eos_token"]
    alone = evaluate(Alone(s.post("/tokenize", {"content": eos}).json["tokens"][0]))
    table = make_table(alone)
    print(table)
    for how in ({"batch_size": 1}, {"batch_size": 4}, {"batch_size": 2, "num_concurrent": 6}):
        args = {"model": name, "base_url": f"http://127.0.0.1:{s.port}/v1/completions", "tokenizer_backend": "remote",
                "max_length": MAX_LENGTH, **how}
        served = evaluate("local-completions", model_args=args)
        same(make_table(served), table, "the table printed,", how)
        same(numbers(served), numbers(alone), "every number,", how)
        for task in TASKS:
            for (i, a), (k, b) in zip(answers(served)[task], answers(alone)[task], strict=True):
                same((i, json.dumps(a)), (k, json.dumps(b)), "an answer of", task, how)
finish()
