/* Log probabilities of tokens, from a model's own logits. */
#include "run/loop.h"

#include <math.h>

/* Inserts into the n likeliest so far, descending, equal ones by ascending id. */
static int insert(tern_logprob *top, int n, int most, int32_t id, double x)
{
    int at = n < most ? n : most - 1;
    for (; at > 0 && x > top[at - 1].logprob; at--)
        top[at] = top[at - 1];
    top[at] = (tern_logprob){id, x};
    return n < most ? n + 1 : n;
}

void tern_score_token(const float *logits, int n_vocab, int32_t id, int n_top, tern_logprob *top, tern_token_score *out)
{
    float max = logits[0];
    int n = 0;
    double sum = 0;
    for (int i = 1; i < n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)logits[i] - (double)max);
        if (n_top && (n < n_top || (double)logits[i] > top[n - 1].logprob))
            n = insert(top, n, n_top, i, (double)logits[i]);
    }
    double log_sum = log(sum) + (double)max;
    for (int i = 0; i < n; i++)
        top[i].logprob = -(log_sum - top[i].logprob);
    *out = (tern_token_score){.id = id, .logprob = -(log_sum - (double)logits[id]), .top = top, .n_top = n};
}
