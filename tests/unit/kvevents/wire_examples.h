/* SPDX-License-Identifier: Apache-2.0 */
/* The annotated payloads of selection.md 11.7, byte for byte, and a reader for them. */
#ifndef TESTS_KVEVENTS_WIRE_EXAMPLES_H
#define TESTS_KVEVENTS_WIRE_EXAMPLES_H

#include <stddef.h>
#include <stdint.h>

#define STORED "ab 426c6f636b53746f726564"
#define REMOVED "ac 426c6f636b52656d6f766564"
#define KEY_TYPE "a4 74797065"
#define KEY_HASHES "ac 626c6f636b5f686173686573"
#define KEY_PARENT "b1 706172656e745f626c6f636b5f68617368"
#define KEY_TOKENS "a9 746f6b656e5f696473"
#define KEY_BLOCK_SIZE "aa 626c6f636b5f73697a65"
#define KEY_LORA_ID "a7 6c6f72615f6964"
#define KEY_MEDIUM "a6 6d656469756d"
#define KEY_LORA_NAME "a9 6c6f72615f6e616d65"
#define FULL_ATTENTION "ae 66756c6c5f617474656e74696f6e"

#define W1                                                                                         \
    "93 cb 41d954fc40200000 91 98 " STORED " 92 65 66 c0 98 01 02 03 04 05 06 07 08 04 c0 "        \
    "a3 475055 c0 00"
#define W2                                                                                         \
    "93 cb 41d954fc40200000 91 9c " STORED " 91 fe 65 94 09 0a 0b 0c 04 c0 a3 475055 "             \
    "a6 6c6f72615f37 91 91 a5 696d672d31 00 " FULL_ATTENTION " c0 01"
#define W3                                                                                         \
    "93 cb 41d954fc40400000 91 8a " KEY_TYPE STORED KEY_HASHES " 91 67 " KEY_PARENT                \
    " 66 " KEY_TOKENS " 94 09 0a 0b 0c " KEY_BLOCK_SIZE " 04 " KEY_LORA_ID " c0 " KEY_MEDIUM       \
    " a3 435055 " KEY_LORA_NAME " c0 a9 67726f75705f696478 00 "                                    \
    "b2 6b765f63616368655f737065635f6b696e64 " FULL_ATTENTION " c0"
#define W4_ARRAY "93 cb 41d954fc40800000 91 93 " REMOVED " 91 66 a3 475055 00"
#define W4_MAP                                                                                     \
    "93 cb 41d954fc40800000 91 83 " KEY_TYPE REMOVED KEY_HASHES " 91 66 " KEY_MEDIUM " a3 475055 " \
    "00"
#define W5 "92 cb 41d954fc40c00000 91 91 b0 416c6c426c6f636b73436c6561726564"
#define W6                                                                                         \
    "93 cb 41d954fc41000000 91 97 " STORED                                                         \
    " 91 c4 20 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f c0 "               \
    "94 01 02 03 04 04 c0 a3 475055 00"
#define W7                                                                                         \
    "93 cb 41d954fc41400000 91 98 " STORED                                                         \
    " 91 07 c0 94 92 01 02 92 02 03 92 03 04 92 04 05 04 c0 a3 475055 "                            \
    "81 aa 63616368655f73616c74 a8 74656e616e742d61 00"
#define W8                                                                                         \
    "93 cb 41d954fc41800000 91 89 " KEY_TYPE STORED KEY_HASHES                                     \
    " 91 d3 cb38e4d7fb2dca5c " KEY_PARENT " c0 " KEY_TOKENS " 94 01 02 03 04 " KEY_BLOCK_SIZE      \
    " 04 " KEY_LORA_ID " c0 " KEY_MEDIUM " a3 475055 aa 63616368655f73616c74 a8 74656e616e742d61 " \
    "aa 73657373696f6e5f6964 a3 732d31 00"

static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Blanks are passed over. Returns the number of bytes. */
static inline size_t unhex(const char *text, uint8_t *out, size_t room)
{
    size_t digits = 0;
    for (; *text != '\0'; text++) {
        int value = hex_digit(*text);
        if (value < 0 || digits / 2 == room)
            continue;
        out[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : out[digits / 2] | value);
        digits++;
    }
    return digits / 2;
}

#endif
