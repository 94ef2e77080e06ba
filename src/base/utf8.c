#include "base/utf8.h"

// What a lead byte promises: sequence length, and the allowed range of the second byte, which is where
// overlong forms, surrogates and values above U+10FFFF show (Unicode table 3-7). Length 0: never a lead byte.
typedef struct lead_rule {
    int len;
    uint8_t second_low, second_high;
} lead_rule;

static lead_rule lead_of(uint8_t byte) {
    if (byte < 0x80) {
        return (lead_rule){1, 0, 0};
    }
    if (byte < 0xC2) {
        return (lead_rule){0, 0, 0};
    }
    if (byte < 0xE0) {
        return (lead_rule){2, 0x80, 0xBF};
    }
    if (byte < 0xF0) {
        return (lead_rule){3, byte == 0xE0 ? 0xA0 : 0x80, byte == 0xED ? 0x9F : 0xBF};
    }
    if (byte < 0xF5) {
        return (lead_rule){4, byte == 0xF0 ? 0x90 : 0x80, byte == 0xF4 ? 0x8F : 0xBF};
    }
    return (lead_rule){0, 0, 0};
}

// Number of bytes at s that form a valid prefix of a sequence with the given rule; at least 1.
static int valid_prefix(const char *s, size_t len, lead_rule rule) {
    int n = 1;
    while (n < rule.len && (size_t)n < len) {
        uint8_t byte = (uint8_t)s[n];
        uint8_t low = n == 1 ? rule.second_low : 0x80;
        uint8_t high = n == 1 ? rule.second_high : 0xBF;
        if (byte < low || byte > high) {
            break;
        }
        n++;
    }
    return n;
}

int utf8_decode(const char *s, size_t len, uint32_t *code_point) {
    if (len == 0) {
        return 0;
    }
    uint8_t first = (uint8_t)s[0];
    lead_rule rule = lead_of(first);
    if (rule.len == 0 || valid_prefix(s, len, rule) < rule.len) {
        return 0;
    }
    static const uint8_t lead_mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t value = first & lead_mask[rule.len];
    for (int i = 1; i < rule.len; i++) {
        value = value << 6 | ((uint8_t)s[i] & 0x3F);
    }
    *code_point = value;
    return rule.len;
}

int utf8_encode(uint32_t code_point, char out[4]) {
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xC0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xE0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

bool utf8_valid(const char *s, size_t len) {
    uint32_t ignored;
    for (size_t i = 0; i < len;) {
        int n = utf8_decode(s + i, len - i, &ignored);
        if (n == 0) {
            return false;
        }
        i += (size_t)n;
    }
    return true;
}

size_t utf8_incomplete_tail(const char *s, size_t len) {
    size_t most = len < 3 ? len : 3;
    for (size_t back = 1; back <= most; back++) {
        lead_rule rule = lead_of((uint8_t)s[len - back]);
        if (rule.len == 0) {
            continue; // a continuation byte: the lead is further back
        }
        bool is_open = (size_t)rule.len > back && valid_prefix(s + len - back, back, rule) == (int)back;
        return is_open ? back : 0;
    }
    return 0;
}

int utf8_invalid_length(const char *s, size_t len) {
    if (len == 0) {
        return 0;
    }
    lead_rule rule = lead_of((uint8_t)s[0]);
    if (rule.len == 0) {
        return 1;
    }
    int n = valid_prefix(s, len, rule);
    return n == rule.len ? 0 : n;
}
