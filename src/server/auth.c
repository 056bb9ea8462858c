/* Who may ask.
 *
 * With keys: whoever has one.  Without: whoever can connect, which by default is this machine alone; then a web page
 * that a browser on this machine shows could connect as well, so a request must name this machine as its host (a page
 * of another name that was made to resolve to it does not) and must not come from a page of another origin. */
#include <ctype.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/server_impl.h"

/* Blanks around a key do not count: a header's value has none. */
static bool digest(const char *key, unsigned char out[32])
{
    static const char blanks[] = " \t\r\n";
    key += strspn(key, blanks);
    size_t n = strlen(key);
    while (n > 0 && strchr(blanks, key[n - 1]))
        n--;
    return EVP_Digest(key, n, out, NULL, EVP_sha256(), NULL) == 1;
}

int tern_auth_init(struct tern_server *s, tern_error *err)
{
    if (s->p.n_keys == 0)
        return 0;
    s->key_digests = calloc((size_t)s->p.n_keys, sizeof *s->key_digests);
    if (!s->key_digests)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the keys");
    for (int i = 0; i < s->p.n_keys; i++)
        if (!digest(s->p.keys[i], s->key_digests[i]))
            return tern_err_set(err, TERN_EIO, "OpenSSL has no SHA-256");
    return 0;
}

/* Digests are compared, all of them and all of each, so that the time tells nothing. */
static int key_number(const struct tern_server *s, const char *key)
{
    unsigned char d[32];
    int number = 0;
    if (!key || !digest(key, d))
        return 0;
    for (int i = 0; i < s->p.n_keys; i++)
        number |= (CRYPTO_memcmp(d, s->key_digests[i], sizeof d) == 0) * (i + 1);
    return number;
}

uint64_t tern_auth_key(const struct tern_server *s, const struct tern_http_call *c)
{
    const struct tern_http_head *h = tern_http_call_head(c);
    const char *bearer = tern_http_head_get(h, "authorization"), *plain = tern_http_head_get(h, "x-api-key");
    if (bearer && strncasecmp(bearer, "bearer ", 7) == 0)
        bearer += 7 + strspn(bearer + 7, " ");
    else
        bearer = NULL;
    int number = key_number(s, bearer);
    return (uint64_t)(number ? number : key_number(s, plain));
}

/* "localhost:8080" -> is it this machine, whatever the port?  `own`: what --host calls it. */
static bool names_this_machine(const char *host, const char *own)
{
    const char *const names[] = {"localhost", "127.0.0.1", "[::1]", own};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncasecmp(host, names[i], n) == 0 && (host[n] == 0 || host[n] == ':'))
            return true;
    }
    return false;
}

bool tern_auth_check(const struct tern_server *s, const struct tern_http_call *c, bool key_needed, struct tern_fault *f)
{
    const struct tern_http_head *h = tern_http_call_head(c);
    const char *host = tern_http_head_get(h, "host"), *origin = tern_http_head_get(h, "origin");
    if (s->p.n_keys > 0) {
        if (!key_needed || tern_auth_key(s, c))
            return true;
        (void)tern_fault_set(f, 401, "invalid_api_key", NULL,
                             "this server wants an API key, as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"");
        return false;
    }
    const char *page = origin ? strstr(origin, "://") : NULL;
    if (origin && (!page || !host || strcasecmp(page + 3, host) != 0)) {
        (void)tern_fault_set(f, 403, "origin_not_allowed", NULL,
                             "requests of web pages from another origin are not answered");
        return false;
    }
    bool guarded = tern_http_is_local(s->http) && !tern_http_call_is_unix(c);
    if (guarded && host && !names_this_machine(host, tern_http_host(s->http))) {
        (void)tern_fault_set(f, 403, "host_not_allowed", NULL,
                             "the Host header names another machine; without an API key only requests to localhost "
                             "are answered");
        return false;
    }
    return true;
}
