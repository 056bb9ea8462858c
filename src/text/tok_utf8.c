#include "text/tok_impl.h"

#include <string.h>

int tern_utf8_decode(const char *p, size_t n, uint32_t *cp)
{
    const uint8_t *s = (const uint8_t *)p;
    uint8_t a = s[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xC2 || a > 0xF4)
        return 0;
    int len = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    if (n < (size_t)len || (s[1] & 0xC0) != 0x80)
        return 0;
    /* Only the second byte can make a longer form than needed, a surrogate, or a value above U+10FFFF. */
    if ((a == 0xE0 && s[1] < 0xA0) || (a == 0xED && s[1] > 0x9F) || (a == 0xF0 && s[1] < 0x90) ||
        (a == 0xF4 && s[1] > 0x8F))
        return 0;
    uint32_t v = (uint32_t)(a & (0xFF >> (len + 1))) << 6 | (s[1] & 0x3Fu);
    for (int i = 2; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    *cp = v;
    return len;
}

size_t tern_utf8_valid(const char *p, size_t n)
{
    size_t i = 0;
    uint32_t cp;
    while (i < n) {
        uint64_t eight;
        if (i + 8 <= n) {
            memcpy(&eight, p + i, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                i += 8;
                continue;
            }
        }
        int len = tern_utf8_decode(p + i, n - i, &cp);
        if (len == 0)
            break;
        i += (size_t)len;
    }
    return i;
}
