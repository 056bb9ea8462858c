/* The web page, as it lies in src/server/page, within the program. */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "server/server_impl.h"

#define TEXT_OF(path) TEXT_OF_(path)
#define TEXT_OF_(path)                                                                                      \
    ".pushsection .rodata\n.global tern_page_text\n.global tern_page_end\n.hidden tern_page_text\n.hidden " \
    "tern_page_end\n"                                                                                       \
    "tern_page_text:\n.incbin \"" path "\"\ntern_page_end:\n.byte 0\n.popsection\n"
__asm__(TEXT_OF(TERN_PAGE));
extern const char tern_page_text[], tern_page_end[];

/* "sha256-..." of what stands between two marks: a browser runs nothing else. */
static bool allow(char *out, size_t size, const char *from, const char *to)
{
    unsigned char digest[32], text[48];
    const char *begin = strstr(tern_page_text, from), *end = begin ? strstr(begin, to) : NULL;
    out[0] = 0;
    if (!end)
        return true;
    begin += strlen(from);
    if (EVP_Digest(begin, (size_t)(end - begin), digest, NULL, EVP_sha256(), NULL) != 1)
        return false;
    (void)EVP_EncodeBlock(text, digest, sizeof digest);
    (void)snprintf(out, size, "'sha256-%s'", (const char *)text);
    return true;
}

void tern_page_answer(struct tern_server *s, struct tern_http_call *c)
{
    char script[80], style[80], policy[400];
    (void)s;
    if (!allow(script, sizeof script, "<script>", "</script>") || !allow(style, sizeof style, "<style>", "</style>")) {
        struct tern_fault f;
        (void)tern_fault_set(&f, 503, NULL, NULL, "out of memory");
        tern_fault_reply(c, &f, TERN_SHAPE_OPENAI);
        return;
    }
    (void)snprintf(
        policy, sizeof policy,
        "default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
        script, style);
    tern_http_header(c, "Content-Security-Policy", policy);
    tern_http_header(c, "Referrer-Policy", "no-referrer");
    tern_http_header(c, "Cache-Control", "no-cache");
    tern_http_reply(c, 200, "text/html; charset=utf-8", tern_page_text, (size_t)(tern_page_end - tern_page_text));
}
