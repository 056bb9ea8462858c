#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/outfile.h"
#include "base/rng.h"
#include "cli/chat.h"

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void clear_turns(tern_chat_turn *turns, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free((char *)turns[i].role);
        free((char *)turns[i].content);
    }
}

int tern_session_add(struct tern_session *s, const char *role, const char *content, json_t *more, tern_error *err)
{
    int rc = 0;
    tern_chat_turn turn = {strdup(role), strdup(content)};
    if (!s->more)
        s->more = json_array();
    if (json_array_append_new(s->more, more ? more : json_null()) < 0 || !turn.role || !turn.content)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate a chat turn");
    if (s->n_turns == s->cap_turns)
        TERN_TRY(tern_grow(&s->turns, &s->cap_turns, s->n_turns + 1, sizeof *s->turns, err));
    if (s->n_turns == s->cap_lengths)
        TERN_TRY(tern_grow(&s->lengths, &s->cap_lengths, s->n_turns + 1, sizeof *s->lengths, err));
    s->lengths[s->n_turns] = s->exact && s->seq ? tern_seq_length(s->seq) : -1;
    s->turns[s->n_turns++] = turn;
    return 0;
out:
    (void)json_array_remove(s->more, s->n_turns);
    free((char *)turn.role);
    free((char *)turn.content);
    return rc;
}

void tern_session_drop(struct tern_session *s)
{
    clear_turns(&s->turns[--s->n_turns], 1);
    (void)json_array_remove(s->more, s->n_turns);
}

int tern_session_text(const struct tern_session *s, int from, int to, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    tern_stream *stream = NULL;
    const char *piece;
    size_t len;
    TERN_TRY(tern_stream_new(&stream, s->model, false, err));
    for (int i = from > 0 ? from : 0; i < to; i++) {
        TERN_TRY(tern_stream_push(stream, tern_seq_tokens(s->seq)[i], &piece, &len, err));
        TERN_TRY(tern_buf_add(out, piece, len, err));
    }
    TERN_TRY(tern_stream_finish(stream, &piece, &len, err));
    TERN_TRY(tern_buf_add(out, piece, len, err));
out:
    tern_stream_free(stream);
    return rc;
}

/* Are the last n tokens of the sequence this text? */
static int spells(const struct tern_session *s, int n, const char *text, bool *same, tern_error *err)
{
    struct tern_buf b = {0};
    int length = tern_seq_length(s->seq);
    int rc = tern_session_text(s, length - n, length, &b, err);
    *same = rc == 0 && b.len == strlen(text) && (!b.len || memcmp(b.p, text, b.len) == 0);
    tern_buf_clear(&b);
    return rc;
}

int tern_session_add_reply(struct tern_session *s, const char *content, json_t *more, int n, tern_error *err)
{
    int rc = tern_session_add(s, "assistant", content, more, err);
    return rc < 0 ? rc : spells(s, n, content, &s->exact, err);
}

const json_t *tern_session_open_call(const struct tern_session *s)
{
    size_t i = s->n_turns, n_results = 0;
    while (i && strcmp(s->turns[i - 1].role, "tool") == 0) {
        i--;
        n_results++;
    }
    return i ? json_array_get(json_object_get(json_array_get(s->more, i - 1), "tool_calls"), n_results) : NULL;
}

int tern_session_init(struct tern_session *s, const struct tern_setup *setup, const char *system, const char *vars,
                      uint64_t seed, tern_error *err)
{
    int rc = 0;
    *s = (struct tern_session){.model = setup->model,
                               .engine = setup->engine,
                               .start = setup->start,
                               .vars = vars,
                               .exact = true,
                               .seed = seed};
    TERN_TRY(tern_start_new(&s->seq, s->engine, &s->start, err));
    if (system)
        TERN_TRY(tern_session_add(s, "system", system, NULL, err));
out:
    return rc;
}

void tern_session_clear(struct tern_session *s)
{
    tern_seq_free(s->seq);
    clear_turns(s->turns, s->n_turns);
    tern_free(s->turns);
    tern_free(s->lengths);
    json_decref(s->more);
    *s = (struct tern_session){0};
}

static int new_sequence(struct tern_session *s, tern_error *err)
{
    tern_seq_free(s->seq);
    s->seq = NULL;
    return tern_start_new(&s->seq, s->engine, &s->start, err);
}

int tern_session_reset(struct tern_session *s, tern_error *err)
{
    size_t keep = s->n_turns && strcmp(s->turns[0].role, "system") == 0;
    while (s->n_turns > keep)
        tern_session_drop(s);
    s->exact = true;
    return new_sequence(s, err);
}

static bool has_role(const struct tern_session *s, size_t i, const char *role)
{
    return strcmp(s->turns[i].role, role) == 0;
}

/* The sequence no longer is what the turns were made of. */
static void lose_track(struct tern_session *s)
{
    s->exact = false;
    for (size_t i = 0; i < s->n_turns; i++)
        s->lengths[i] = -1;
}

static void cut_back(struct tern_session *s);

/* Back to before turn i was added, of a message. */
static void go_back(struct tern_session *s, size_t i)
{
    const int length = s->lengths[i];
    s->exact = length >= 0 && length <= tern_seq_length(s->seq) && tern_seq_trim(s->seq, length, NULL) == 0;
    if (!s->exact)
        cut_back(s);
}

bool tern_session_unreply(struct tern_session *s)
{
    size_t n = s->n_turns;
    while (n && has_role(s, n - 1, "tool"))
        n--;
    if (!n || !has_role(s, n - 1, "assistant"))
        return false;
    while (s->n_turns >= n)
        tern_session_drop(s);
    if (s->n_turns && has_role(s, s->n_turns - 1, "user"))
        go_back(s, s->n_turns - 1);
    else
        s->exact = false; /* the result of a call, which is asked for again */
    return true;
}

bool tern_session_undo(struct tern_session *s, struct tern_buf *message)
{
    size_t n = s->n_turns;
    while (n && !has_role(s, n - 1, "user"))
        n--;
    if (!n)
        return false;
    if (message)
        (void)tern_buf_addf(message, NULL, "%s", s->turns[n - 1].content);
    while (s->n_turns >= n)
        tern_session_drop(s);
    go_back(s, n - 1);
    return true;
}

/* ---- from turns to tokens ---------------------------------------------------------------------------------------- */

/* What the template writes behind the last reply (the end-of-turn marker): with A the rendering that asked for the
 * reply and B the one that contains it, B = A + reply + tail.  TERN_EMISMATCH when B does not have that form. */
static int reply_tail(const struct tern_session *s, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    char *before = NULL, *after = NULL;
    size_t reply = s->n_turns - 2; /* turns: ..., reply, new message */
    TERN_TRY(tern_model_chat_text(s->model, s->turns, reply, true, &before, err));
    TERN_TRY(tern_model_chat_text(s->model, s->turns, reply + 1, false, &after, err));
    size_t n_before = strlen(before), n_reply = strlen(s->turns[reply].content);
    if (strncmp(after, before, n_before) != 0 || strncmp(after + n_before, s->turns[reply].content, n_reply) != 0)
        TERN_FAIL(err, TERN_EMISMATCH, "the chat template rewrites earlier turns");
    const char *tail = after + n_before + n_reply;
    TERN_TRY(tern_model_tokenize(s->model, tail, strlen(tail), TERN_TEXT_SPECIAL, out, err));
out:
    free(before);
    free(after);
    return rc;
}

static int append_only(const struct tern_session *s, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(reply_tail(s, out, err));
    TERN_TRY(tern_model_chat_tokens(s->model, s->turns, s->n_turns, s->n_turns - 1, true, out, err));
out:
    return rc;
}

/* Shortens the sequence to what it has in common with `whole` and leaves the rest in out. */
static int keep_common(struct tern_session *s, const tern_tokens *whole, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    const int32_t *have = tern_seq_tokens(s->seq);
    int n_have = tern_seq_length(s->seq), same = 0;
    while (same < n_have && (size_t)same + 1 < whole->len && have[same] == whole->p[same])
        same++;
    rc = tern_seq_trim(s->seq, same, err);
    if (rc == TERN_EUNSUPPORTED || rc == TERN_EINVAL) { /* a sliding window has moved on, a step failed: begin again */
        same = 0;
        rc = new_sequence(s, err);
    }
    TERN_TRY(rc);
    for (size_t i = (size_t)same; i < whole->len; i++)
        TERN_TRY(tern_tokens_push(out, whole->p[i], err));
out:
    return rc;
}

/* Is the conversation more than roles and contents? */
static bool is_plain(const struct tern_session *s)
{
    for (size_t i = 0; i < s->n_turns; i++)
        if (!json_is_null(json_array_get(s->more, i)))
            return false;
    return !s->vars;
}

/* The turns as messages, each with what else it has. */
static json_t *messages_json(const struct tern_session *s)
{
    json_t *messages = json_array();
    for (size_t i = 0; i < s->n_turns; i++) {
        json_t *message = json_pack("{so so}", "role", tern_json_text(s->turns[i].role), "content",
                                    tern_json_text(s->turns[i].content));
        json_t *more = json_array_get(s->more, i);
        if (json_is_object(more))
            (void)json_object_update_missing(message, more);
        (void)json_array_append_new(messages, message);
    }
    return messages;
}

static int render_whole(const struct tern_session *s, tern_tokens *out, tern_error *err)
{
    if (is_plain(s))
        return tern_model_chat_tokens(s->model, s->turns, s->n_turns, 0, true, out, err);
    json_t *messages = messages_json(s);
    char *text = messages ? json_dumps(messages, JSON_REAL_PRECISION(17)) : NULL;
    int rc = text ? tern_model_chat_json(s->model, text, s->vars, true, out, err)
                  : tern_err_set(err, TERN_ENOMEM, "cannot allocate the messages");
    free(text);
    json_decref(messages);
    return rc;
}

/* What is forgotten shall not be saved: the sequence keeps what the turns that are left begin with. */
static void cut_back(struct tern_session *s)
{
    tern_tokens whole = {0}, rest = {0};
    if (!s->n_turns || render_whole(s, &whole, NULL) < 0 || keep_common(s, &whole, &rest, NULL) < 0)
        (void)tern_seq_trim(s->seq, 0, NULL);
    tern_tokens_clear(&whole);
    tern_tokens_clear(&rest);
}

int tern_session_pending(struct tern_session *s, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    tern_tokens whole = {0};
    bool replied = s->n_turns >= 2 && strcmp(s->turns[s->n_turns - 2].role, "assistant") == 0;
    if (s->exact && replied && is_plain(s) && tern_seq_length(s->seq) > 0) {
        rc = append_only(s, out, err);
        if (rc != TERN_EMISMATCH)
            return rc;
        out->len = 0;
    }
    TERN_TRY(render_whole(s, &whole, err));
    lose_track(s); /* until a reply completes it */
    TERN_TRY(keep_common(s, &whole, out, err));
out:
    tern_tokens_clear(&whole);
    return rc;
}

/* The turns [from, to) go. */
static void forget(struct tern_session *s, size_t from, size_t to)
{
    clear_turns(s->turns + from, to - from);
    memmove(s->turns + from, s->turns + to, (s->n_turns - to) * sizeof *s->turns);
    s->n_turns -= to - from;
    for (; to > from; to--)
        (void)json_array_remove(s->more, to - 1);
    lose_track(s);
}

/* The turn of the user that follows turn i; n_turns: there is none. */
static size_t next_message(const struct tern_session *s, size_t i)
{
    for (i++; i < s->n_turns && !has_role(s, i, "user");)
        i++;
    return i;
}

/* Tokens of the system turn and the last exchange alone. */
static int least(const struct tern_session *s, size_t *n, tern_error *err)
{
    int rc = 0;
    const size_t system = s->n_turns && has_role(s, 0, "system");
    size_t last = s->n_turns;
    while (last > system && !has_role(s, last - 1, "user"))
        last--;
    last -= last > system;
    struct tern_session part = {.model = s->model, .vars = s->vars, .more = json_array()};
    tern_tokens whole = {0};
    TERN_TRY(tern_alloc(&part.turns, s->n_turns + 1, sizeof *part.turns, err));
    for (size_t i = 0; i < s->n_turns; i++)
        if (i < system || i >= last) {
            part.turns[part.n_turns++] = s->turns[i];
            (void)json_array_append(part.more, json_array_get(s->more, i));
        }
    TERN_TRY(render_whole(&part, &whole, err));
    *n = whole.len;
out:
    tern_tokens_clear(&whole);
    tern_free(part.turns);
    json_decref(part.more);
    return rc;
}

int tern_session_shorten(struct tern_session *s, int room, int most, int *n, tern_error *err)
{
    int rc = 0;
    size_t needed = 0;
    tern_tokens whole = {0};
    *n = 0;
    TERN_TRY(least(s, &needed, err));
    if (needed > (size_t)most)
        TERN_FAIL(err, TERN_ELIMIT, "this message alone needs %zu tokens, and there is room for %d of the context",
                  needed, most);
    for (;; ++*n) {
        const size_t first = s->n_turns && has_role(s, 0, "system"), second = next_message(s, first);
        const bool spare = second < s->n_turns, middle = spare && next_message(s, second) < s->n_turns;
        whole.len = 0;
        TERN_TRY(render_whole(s, &whole, err));
        if (whole.len <= (size_t)room || !spare)
            break;
        forget(s, middle ? second : first, middle ? next_message(s, second) : second);
    }
out:
    tern_tokens_clear(&whole);
    return rc;
}

int tern_session_resume(struct tern_session *s, const int32_t *tail, int n_tail, tern_tokens *out, tern_error *err)
{
    int rc = 0;
    tern_tokens whole = {0};
    TERN_TRY(render_whole(s, &whole, err));
    for (int i = 0; i < n_tail; i++)
        TERN_TRY(tern_tokens_push(&whole, tail[i], err));
    lose_track(s);
    TERN_TRY(keep_common(s, &whole, out, err));
out:
    tern_tokens_clear(&whole);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

#define TURNS_FORMAT   "tern chat turns"
#define TURNS_VERSION  1
#define TURNS_MAGIC    "{\n  \"format\": \"" TURNS_FORMAT "\""
#define MAX_TURNS_FILE ((size_t)1 << 28)

static const struct tern_outfile_kind turns_kind = {"the turns of a tern chat", TURNS_MAGIC, sizeof TURNS_MAGIC - 1,
                                                    false, false};

/* Binds the two files of a session to each other. */
static void sequence_digest(const tern_seq *seq, char out[17])
{
    uint64_t h = 0;
    const int32_t *ids = tern_seq_tokens(seq);
    for (int i = 0; i < tern_seq_length(seq); i++)
        h = tern_hash64(h ^ (uint32_t)ids[i]);
    (void)snprintf(out, 17, "%016llx", (unsigned long long)h);
}

static json_t *turns_json(const struct tern_session *s)
{
    char digest[17];
    sequence_digest(s->seq, digest);
    return json_pack("{ss si si ss sb sI so}", "format", TURNS_FORMAT, "version", TURNS_VERSION, "n_tokens",
                     tern_seq_length(s->seq), "tokens_digest", digest, "exact", s->exact, "seed", (json_int_t)s->seed,
                     "turns", messages_json(s));
}

static int write_turns(const struct tern_session *s, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_outfile f = {.fd = -1};
    json_t *j = turns_json(s);
    char *text = j ? json_dumps(j, JSON_INDENT(2)) : NULL;
    if (!text)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the turns of the session");
    TERN_TRY(tern_outfile_open(&f, path, 0600, &turns_kind, err));
    TERN_TRY(tern_outfile_write(&f, text, strlen(text), err));
    TERN_TRY(tern_outfile_write(&f, "\n", 1, err));
    TERN_TRY(tern_outfile_commit(&f, err));
out:
    tern_outfile_abort(&f);
    free(text);
    json_decref(j);
    return rc;
}

int tern_session_save(const struct tern_session *s, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_buf turns_path = {0};
    if (tern_seq_length(s->seq) == 0)
        return tern_err_set(err, TERN_EINVAL, "there is nothing to save yet");
    TERN_TRY(tern_buf_addf(&turns_path, err, "%s.turns.json", path));
    TERN_TRY(tern_outfile_check(turns_path.p, &turns_kind, err)); /* both files or none */
    TERN_TRY(tern_seq_save(s->seq, path, err));
    TERN_TRY(write_turns(s, turns_path.p, err));
out:
    tern_buf_clear(&turns_path);
    return rc;
}

/* The turns of `root` into s, whose turn list is empty. */
static int take_turns(struct tern_session *s, json_t *root, const char *path, tern_error *err)
{
    int rc = 0;
    json_t *turns = json_object_get(root, "turns"), *turn;
    size_t i;
    if (!json_is_array(turns))
        TERN_FAIL(err, TERN_EFORMAT, "%s: \"turns\" is not a list", path);
    json_array_foreach(turns, i, turn)
    {
        const char *role = json_string_value(json_object_get(turn, "role"));
        const char *content = json_string_value(json_object_get(turn, "content"));
        if (!role || !content)
            TERN_FAIL(err, TERN_EFORMAT, "%s: turn %zu has no role or no content", path, i);
        json_t *more = json_deep_copy(turn);
        TERN_TRY(tern_session_add(s, role, content, NULL, err));
        (void)json_object_del(more, "role");
        (void)json_object_del(more, "content");
        if (json_object_size(more))
            (void)json_array_set(s->more, i, more);
        json_decref(more);
    }
out:
    return rc;
}

static int check_header(const json_t *root, const char *path, tern_error *err)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, TURNS_FORMAT) != 0)
        return tern_err_set(err, TERN_EFORMAT, "%s: not the turns of a tern chat", path);
    json_t *version = json_object_get(root, "version");
    if (json_integer_value(version) != TURNS_VERSION)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: version %lld is not %d", path,
                            (long long)json_integer_value(version), TURNS_VERSION);
    json_t *seed = json_object_get(root, "seed");
    if (!json_is_integer(seed) || json_integer_value(seed) < 0)
        return tern_err_set(err, TERN_EFORMAT, "%s: \"seed\" is not a positive integer", path);
    return 0;
}

static int read_turns(struct tern_session *s, const char *path, json_t **root, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    json_error_t where;
    TERN_TRY(tern_buf_read_regular(&text, path, MAX_TURNS_FILE, err));
    *root = json_loadb(text.p, text.len, JSON_REJECT_DUPLICATES, &where);
    if (!*root)
        TERN_FAIL(err, TERN_EFORMAT, "%s: line %d: %s", path, where.line, tern_shown(where.text));
    TERN_TRY(check_header(*root, path, err));
    TERN_TRY(take_turns(s, *root, path, err));
    s->exact = json_is_true(json_object_get(*root, "exact"));
    s->seed = (uint64_t)json_integer_value(json_object_get(*root, "seed"));
out:
    tern_buf_clear(&text);
    return rc;
}

int tern_session_load(struct tern_session *s, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_buf turns_path = {0};
    struct tern_session loaded = {.model = s->model, .engine = s->engine, .start = s->start, .vars = s->vars};
    json_t *root = NULL;
    char digest[17];
    TERN_TRY(tern_buf_addf(&turns_path, err, "%s.turns.json", path));
    TERN_TRY(read_turns(&loaded, turns_path.p, &root, err));
    TERN_TRY(tern_seq_load(&loaded.seq, s->engine, path, err));
    sequence_digest(loaded.seq, digest);
    const char *expected = json_string_value(json_object_get(root, "tokens_digest"));
    if (!expected || strcmp(expected, digest) != 0)
        TERN_FAIL(err, TERN_EMISMATCH, "%s and %s do not belong together", path, turns_path.p);
    TERN_TRY(tern_start_loaded(loaded.seq, s->engine, &s->start, err));
    struct tern_session old = *s;
    *s = loaded;
    loaded = old;
out:
    tern_session_clear(&loaded);
    json_decref(root);
    tern_buf_clear(&turns_path);
    return rc;
}
