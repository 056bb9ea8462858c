/* tern/cache.h - beginnings of prompts in files: one that its user owns, and the directory of a server.
 *
 * A cache file holds the pages of a prompt's first tokens, each of TERN_CACHE_PAGE, as an engine attends to them.
 * Whoever starts from it gets the bits that computing them would have given, because it belongs to one model (all bytes
 * of its weights), one KV plan, one arithmetic and one version of tern, and is refused, by the name of what differs,
 * anywhere else.  The same tokens give the same bytes of the file.
 *
 * Thread: that of the engine; functions without one may be called from any. */
#ifndef TERN_CACHE_H
#define TERN_CACHE_H

#include "tern/tern.h"

#define TERN_CACHE_PAGE 64 /* tokens in a page */

#ifdef __cplusplus
extern "C" {
#endif

/* Computes tokens[0 .. n / 64 * 64) in a sequence of its own and writes them to a new file (temporary name, then
 * rename; what is there is replaced if it is a cache file).  *kept (nullable): how many tokens it holds.  TERN_EINVAL:
 * n < 64; TERN_EUNSUPPORTED: a plan with recent=N, an engine that codes prompts at their end. */
TERN_API int tern_cache_build(tern_engine *e, const int32_t *tokens, int n, const char *path,
                              tern_progress_fn *progress, void *user, int *kept, tern_error *err);

/* A new sequence with the longest beginning of tokens[0..n) that the file holds and a sequence can start from, at most
 * n - 1 tokens; *found: how many, 0 when the prompt does not begin like it.  TERN_EMISMATCH names what the file does
 * not fit; TERN_EFORMAT what is damaged.  Sliding windows and recurrent states can only go on where the file ends. */
TERN_API int tern_cache_start(tern_seq **out, tern_engine *e, const char *path, const int32_t *tokens, int n,
                              int *found, tern_error *err);

typedef struct tern_cache_file {
    int n_tokens;
    size_t bytes;
    uint64_t weights; /* digest of all their bytes */
    char kv[128];     /* the plan in words */
    char arithmetic[32], version[16];
} tern_cache_file;
/* Reads a cache file and checks every byte of it; out may be NULL. */
TERN_API int tern_cache_check(const char *path, tern_cache_file *out, tern_error *err);

typedef struct tern_cache_dir {
    size_t pages, ends; /* of 64 tokens; of prompts, behind them */
    size_t bytes;
    size_t damaged; /* are not what they should be; where that was asked */
    size_t others;  /* files that are not the cache's */
} tern_cache_dir;
/* What is in a server's directory (tern_loop_params.cache_dir), which may be in use.  verify: reads all of it;
 * on_damaged (nullable) hears of each file that is not what it should be, and it stays.  TERN_EIO: it cannot be read.
 */
TERN_API int tern_cache_dir_scan(const char *dir, bool verify, void (*on_damaged)(void *user, const char *line),
                                 void *user, tern_cache_dir *out, tern_error *err);
/* Removes the cache's files from it, and no others; *out: what has gone. */
TERN_API int tern_cache_dir_clear(const char *dir, tern_cache_dir *out, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif
