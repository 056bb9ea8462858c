/* Questions about a tokenizer, and its end. */
#include <stdlib.h>

#include "text/tok/encode.h"

void tern_tokenizer_free(struct tern_tokenizer *t)
{
    if (!t)
        return;
    free(t->names); /* jansson's */
    tern_free(t->type);
    tern_free(t->eog);
    tern_tok_strings_clear(&t->piece);
    tern_tok_strings_clear(&t->bytes);
    tern_tok_map_clear(&t->by_piece);
    tern_tok_map_clear(&t->by_bytes);
    tern_tok_trie_clear(&t->added);
    tern_tok_trie_clear(&t->added_normal);
    tern_tok_trie_clear(&t->pieces);
    tern_tok_steps_clear(&t->norm);
    tern_tok_steps_clear(&t->pre);
    tern_free(t->find);
    tern_free(t->score);
    tern_free(t->rules);
    tern_free(t->rank);
    tern_free(t);
}

/* ---- questions ---------------------------------------------------------------------------------------------- */

static bool in_vocab(const struct tern_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab;
}

int tern_tokenizer_n_vocab(const struct tern_tokenizer *t)
{
    return t->n_vocab;
}

const char *tern_tokenizer_kind(const struct tern_tokenizer *t)
{
    return t->kind;
}

size_t tern_tokenizer_longest(const struct tern_tokenizer *t)
{
    return t->max_bytes;
}

int32_t tern_tokenizer_front(const struct tern_tokenizer *t)
{
    return t->n_front ? t->front[0] : -1;
}

int32_t tern_tokenizer_bos(const struct tern_tokenizer *t)
{
    return t->bos;
}

int32_t tern_tokenizer_eos(const struct tern_tokenizer *t)
{
    return t->eos;
}

bool tern_tokenizer_is_eog(const struct tern_tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && t->eog[id];
}

bool tern_tokenizer_is_control(const struct tern_tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && tern_tok_is_control_type(t->type[id]);
}

int32_t tern_tokenizer_find(const struct tern_tokenizer *t, const char *text, size_t n)
{
    return tern_tok_map_get(&t->by_piece, &t->piece, text, n);
}

const char *tern_tokenizer_piece(const struct tern_tokenizer *t, int32_t id)
{
    size_t n;
    return in_vocab(t, id) ? tern_tok_string(&t->piece, id, &n) : NULL;
}
