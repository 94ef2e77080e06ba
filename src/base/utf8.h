// UTF-8 by RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Decode one code point from s[0..len). Returns its byte length 1..4, or 0 when the bytes
// are not a complete valid sequence. len 0 gives 0.
int utf8_decode(const char *s, size_t len, uint32_t *code_point);
// Write a valid code point (not a surrogate); returns the byte count 1..4.
int utf8_encode(uint32_t code_point, char out[4]);
bool utf8_valid(const char *s, size_t len);
// Bytes at the end of s that begin a sequence which later bytes could still complete: 0..3.
size_t utf8_incomplete_tail(const char *s, size_t len);
// Length 1..4 of the maximal invalid piece at s that one U+FFFD replaces (Unicode 3.9, as
// Python's errors="replace" does); 0 when s starts with a valid sequence.
int utf8_invalid_length(const char *s, size_t len);

#endif
