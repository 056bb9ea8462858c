/* Grammars that replies of a model followed lately: agents send the same tools and schemas with every request, and what
 * a grammar has met (its states, their masks) is worth more than its compilation. */
#include "run/run.h"

#include <pthread.h>
#include <string.h>
#include "base/mem.h"

#define MAX_KNOWN 8

struct tern_known {
    pthread_mutex_t lock;
    uint64_t turn;
    struct known {
        struct tern_buf key;
        tern_grammar *g; /* NULL: free */
        uint64_t used;
    } v[MAX_KNOWN];
};

int tern_known_new(struct tern_known **out, tern_error *err)
{
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc == 0)
        (void)pthread_mutex_init(&(*out)->lock, NULL);
    return rc;
}

void tern_known_free(struct tern_known *k)
{
    if (!k)
        return;
    for (int i = 0; i < MAX_KNOWN; i++) {
        tern_buf_clear(&k->v[i].key);
        tern_grammar_free(k->v[i].g);
    }
    (void)pthread_mutex_destroy(&k->lock);
    tern_free(k);
}

/* Everything that a compilation depends on. */
static int make_key(struct tern_buf *key, enum tern_gr_kind kind, const char *text, size_t n,
                    const struct tern_gr_frame *f, const struct tern_gr_calls *c, tern_error *err)
{
    int rc = 0;
    TERN_TRY(
        tern_buf_addf(key, err, "%d %d %s %s\n", (int)kind, f->begun, f->open ? f->open : "", f->open ? f->close : ""));
    if (c)
        TERN_TRY(tern_buf_addf(key, err, "%s %s %d %s %d %d\n", c->open, c->close, c->list,
                               c->function ? c->function : "", c->required, c->several));
    TERN_TRY(tern_buf_add(key, text, n, err));
out:
    return rc;
}

/* The lock is held. */
static struct known *find(struct tern_known *k, const struct tern_buf *key)
{
    for (int i = 0; i < MAX_KNOWN; i++)
        if (k->v[i].g && k->v[i].key.len == key->len && memcmp(k->v[i].key.p, key->p, key->len) == 0)
            return &k->v[i];
    return NULL;
}

/* Takes the place of the one that was used longest ago. */
static void keep(struct tern_known *k, struct tern_buf *key, const tern_grammar *g)
{
    struct known *to = &k->v[0];
    for (int i = 1; i < MAX_KNOWN; i++)
        if (k->v[i].used < to->used)
            to = &k->v[i];
    tern_buf_clear(&to->key);
    tern_grammar_free(to->g);
    to->key = *key;
    to->g = tern_gr_ref(g);
    to->used = ++k->turn;
    *key = (struct tern_buf){0};
}

int tern_known_compile(struct tern_known *k, tern_grammar **out, enum tern_gr_kind kind, const char *text, size_t n,
                       const struct tern_gr_frame *frame, const struct tern_gr_calls *calls, tern_error *err)
{
    int rc = 0;
    struct tern_buf key = {0};
    struct known *is;
    *out = NULL;
    TERN_TRY(make_key(&key, kind, text, n, frame, calls, err));
    (void)pthread_mutex_lock(&k->lock);
    is = find(k, &key);
    if (is) {
        *out = tern_gr_ref(is->g);
        is->used = ++k->turn;
    }
    (void)pthread_mutex_unlock(&k->lock);
    if (*out)
        goto out;
    TERN_TRY(
        tern_gr_compile(out, kind, text, n, frame, calls, err)); /* perhaps beside another thread, which is no harm */
    (void)pthread_mutex_lock(&k->lock);
    if (!find(k, &key))
        keep(k, &key, *out);
    (void)pthread_mutex_unlock(&k->lock);
out:
    tern_buf_clear(&key);
    return rc;
}
