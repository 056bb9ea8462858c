#include "base/utf8.h"

#include <stdbool.h>
#include <string.h>

/* Length that a lead byte announces; 0 when no character begins with it. */
static int announced(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;
    return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* The second byte alone decides about forms longer than needed, surrogates and values above U+10FFFF. */
static bool second_fits(uint8_t lead, uint8_t second)
{
    uint8_t lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return second >= lo && second <= hi;
}

int tern_utf8_decode(const char *p, size_t n, uint32_t *cp)
{
    const uint8_t *s = (const uint8_t *)p;
    int len = announced(s[0]);
    if (len <= 1) {
        *cp = s[0];
        return len;
    }
    if (n < (size_t)len || !second_fits(s[0], s[1]))
        return 0;
    uint32_t v = (uint32_t)(s[0] & (0xFF >> (len + 1))) << 6 | (s[1] & 0x3Fu);
    for (int i = 2; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    *cp = v;
    return len;
}

int tern_utf8_missing(const char *p, int n)
{
    const uint8_t *s = (const uint8_t *)p;
    int len = announced(s[0]);
    if (n > len || (n > 1 && !second_fits(s[0], s[1])))
        return -1;
    for (int i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return -1;
    return len - n;
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
