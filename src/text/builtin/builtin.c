/* Chat templates of our own, for models whose files bring none: the texts lie beside this file, within the library. */
#include <string.h>

#include "text/text.h"

#define TEXT_OF(path) TEXT_OF_(path)
#define TEXT_OF_(path)                                                                           \
    ".pushsection .rodata\n.global tern_builtin_deepseek4\n.global tern_builtin_deepseek4_end\n" \
    ".hidden tern_builtin_deepseek4\n.hidden tern_builtin_deepseek4_end\n"                       \
    "tern_builtin_deepseek4:\n.incbin \"" path "\"\ntern_builtin_deepseek4_end:\n.byte 0\n.popsection\n"
__asm__(TEXT_OF(TERN_BUILTIN_DEEPSEEK4));
extern const char tern_builtin_deepseek4[], tern_builtin_deepseek4_end[];

static bool knows(const struct tern_tokenizer *t, const char *token)
{
    return tern_tokenizer_find(t, token, strlen(token)) >= 0;
}

/* The first release's configuration knows nothing of DSpark, which came with the second; so a file of which no
 * configuration is left counts as the second, whose texts of effort hold both of the first's. */
static bool is_preview(const struct tern_texts *t)
{
    return t->model.p && !memmem(t->model.p, t->model.len, "\"dspark_", 8);
}

int tern_texts_builtin(const struct tern_texts *t, struct tern_str arch, const struct tern_tokenizer *tok,
                       struct tern_buf *out, bool *found, tern_error *err)
{
    static const char preview[] = "{%- if preview is not defined -%}{%- set preview = true -%}{%- endif -%}\n";
    int rc = 0;
    *found = arch.n == 9 && memcmp(arch.p, "deepseek4", 9) == 0 && knows(tok, "<｜User｜>") &&
             knows(tok, "<｜Assistant｜>") && knows(tok, "</think>");
    if (!*found)
        goto out;
    if (is_preview(t))
        TERN_TRY(tern_buf_add(out, preview, sizeof preview - 1, err));
    TERN_TRY(
        tern_buf_add(out, tern_builtin_deepseek4, (size_t)(tern_builtin_deepseek4_end - tern_builtin_deepseek4), err));
out:
    return rc;
}
