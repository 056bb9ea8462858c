"""guidellm as it is published: its load against both completions, streamed, nothing lost and nothing miscounted.  Run by
tests/clients/run; what it measures here says nothing."""
import json
import os
import subprocess
import sys
import tempfile

from serve_lib import Server, check, finish, same

REQUESTS, TOKENS = 60, 16

with Server() as s, tempfile.TemporaryDirectory() as work:
    with open(os.path.join(work, "data.jsonl"), "w", encoding="ascii") as f:
        for i in range(REQUESTS):
            f.write(json.dumps({"prompt": f"the quick brown fox {i} " * (1 + i % 7), "output_tokens_count": TOKENS}) + "\n")
    for path in ("/v1/chat/completions", "/v1/completions"):
        before = s.metric("tern_generated_tokens_total")
        run = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--backend",
             f"kind=openai_http,target=http://127.0.0.1:{s.port},model=tools,request_format={path}",
             "--profile", "kind=concurrent,streams=8", "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--data", "kind=json_file,path=data.jsonl", "--output", "kind=json,path=out.json", "--disable-console"],
            cwd=work, capture_output=True, text=True, timeout=300)
        same(run.returncode, 0, path, run.stderr[-2000:])
        with open(os.path.join(work, "out.json"), encoding="utf-8") as f:
            done = json.load(f)["benchmarks"][0]
        totals = done["metrics"]["request_totals"]
        same((totals["successful"], totals["errored"], totals["incomplete"]), (REQUESTS, 0, 0), path)
        counts = {r["output_metrics"]["text_tokens"] for r in done["requests"]["successful"]}
        same(counts, {TOKENS}, "tokens of each reply,", path)
        check(s.metric("tern_generated_tokens_total") - before >= REQUESTS * TOKENS, "the server counts them, too")
finish()
