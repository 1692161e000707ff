/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/msgpack.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

/* ---- reader ---- */

void fl_msgpack_init(struct fl_msgpack *reader, struct fl_bytes message)
{
    *reader = (struct fl_msgpack){.at = message.p, .end = message.p + message.n};
}

static size_t room(const struct fl_msgpack *reader)
{
    return (size_t)(reader->end - reader->at);
}

/* `n` is 1, 2, 4 or 8. */
static bool take_number(struct fl_msgpack *reader, size_t n, uint64_t *number)
{
    if (room(reader) < n)
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | reader->at[i];
    reader->at += n;
    *number = value;
    return true;
}

static int take_bytes(struct fl_msgpack *reader, uint64_t n, enum fl_msgpack_type type,
                      struct fl_msgpack_value *value)
{
    if (room(reader) < n)
        return FL_EPROTO;
    value->type = type;
    value->bytes = fl_bytes(reader->at, (size_t)n);
    reader->at += n;
    return 0;
}

static int take_container(struct fl_msgpack *reader, uint64_t count, enum fl_msgpack_type type,
                          struct fl_msgpack_value *value)
{
    uint64_t values = type == FL_MSGPACK_MAP ? count * 2 : count;
    if (room(reader) < values)
        return FL_EPROTO;
    if (reader->depth == FL_MSGPACK_DEPTH_MAX)
        return FL_EDEPTH;
    value->type = type;
    value->count = (uint32_t)count;
    reader->left[reader->depth++] = values;
    return 0;
}

static void set_uint(struct fl_msgpack_value *value, uint64_t number)
{
    value->type = FL_MSGPACK_UINT;
    value->uint = number;
}

static void set_signed(struct fl_msgpack_value *value, int64_t number)
{
    if (number >= 0) {
        set_uint(value, (uint64_t)number);
        return;
    }
    value->type = FL_MSGPACK_INT;
    value->sint = number;
}

static void set_real(struct fl_msgpack_value *value, double number)
{
    value->type = FL_MSGPACK_FLOAT;
    value->real = number;
}

static float float_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float number;
    memcpy(&number, &low, sizeof(number));
    return number;
}

static double double_of(uint64_t bits)
{
    double number;
    memcpy(&number, &bits, sizeof(number));
    return number;
}

/* Extensions: a length, a type byte that nobody asks for, data. */
static int take_ext(struct fl_msgpack *reader, uint64_t n, struct fl_msgpack_value *value)
{
    uint64_t type;
    if (!take_number(reader, 1, &type))
        return FL_EPROTO;
    return take_bytes(reader, n, FL_MSGPACK_EXT, value);
}

/* Types c0 to df: what follows the first byte is a number of `width` bytes, or nothing. */
enum form {
    FORM_BAD,
    FORM_NIL,
    FORM_BOOL,
    FORM_BIN,
    FORM_EXT,
    FORM_FIXEXT,
    FORM_F32,
    FORM_F64,
    FORM_UINT,
    FORM_SINT,
    FORM_STR,
    FORM_ARRAY,
    FORM_MAP
};

static const struct {
    uint8_t form, width;
} forms[32] = {
    {FORM_NIL, 0},    {FORM_BAD, 0},    {FORM_BOOL, 0},   {FORM_BOOL, 0},   /* c0 */
    {FORM_BIN, 1},    {FORM_BIN, 2},    {FORM_BIN, 4},    {FORM_EXT, 1},    /* c4 */
    {FORM_EXT, 2},    {FORM_EXT, 4},    {FORM_F32, 4},    {FORM_F64, 8},    /* c8 */
    {FORM_UINT, 1},   {FORM_UINT, 2},   {FORM_UINT, 4},   {FORM_UINT, 8},   /* cc */
    {FORM_SINT, 1},   {FORM_SINT, 2},   {FORM_SINT, 4},   {FORM_SINT, 8},   /* d0 */
    {FORM_FIXEXT, 0}, {FORM_FIXEXT, 0}, {FORM_FIXEXT, 0}, {FORM_FIXEXT, 0}, /* d4 */
    {FORM_FIXEXT, 0}, {FORM_STR, 1},    {FORM_STR, 2},    {FORM_STR, 4},    /* d8 */
    {FORM_ARRAY, 2},  {FORM_ARRAY, 4},  {FORM_MAP, 2},    {FORM_MAP, 4},    /* dc */
};

static int64_t sign_extend(uint64_t number, uint32_t width)
{
    assert(width > 0 && width <= 8);
    uint32_t shift = 64 - 8 * width;
    return (int64_t)(number << shift) >> shift;
}

static int take_formed(struct fl_msgpack *reader, uint8_t first, struct fl_msgpack_value *value)
{
    uint32_t width = forms[first - 0xc0].width;
    uint64_t number = 0;
    if (width > 0 && !take_number(reader, width, &number))
        return FL_EPROTO;

    switch ((enum form)forms[first - 0xc0].form) {
    case FORM_NIL:
        value->type = FL_MSGPACK_NIL;
        return 0;
    case FORM_BOOL:
        value->type = FL_MSGPACK_BOOL;
        value->boolean = first == 0xc3;
        return 0;
    case FORM_BIN:
        return take_bytes(reader, number, FL_MSGPACK_BIN, value);
    case FORM_EXT:
        return take_ext(reader, number, value);
    case FORM_FIXEXT:
        return take_ext(reader, UINT64_C(1) << (first - 0xd4), value);
    case FORM_F32:
        set_real(value, (double)float_of(number));
        return 0;
    case FORM_F64:
        set_real(value, double_of(number));
        return 0;
    case FORM_UINT:
        set_uint(value, number);
        return 0;
    case FORM_SINT:
        set_signed(value, sign_extend(number, width));
        return 0;
    case FORM_STR:
        return take_bytes(reader, number, FL_MSGPACK_STR, value);
    case FORM_ARRAY:
        return take_container(reader, number, FL_MSGPACK_ARRAY, value);
    case FORM_MAP:
        return take_container(reader, number, FL_MSGPACK_MAP, value);
    case FORM_BAD:
        break;
    }
    return FL_EPROTO;
}

static int take_value(struct fl_msgpack *reader, struct fl_msgpack_value *value)
{
    uint8_t first = *reader->at++;
    if (first < 0x80) {
        set_uint(value, first);
        return 0;
    }
    if (first >= 0xe0) {
        set_signed(value, (int8_t)first);
        return 0;
    }
    if (first < 0x90)
        return take_container(reader, first & 0x0f, FL_MSGPACK_MAP, value);
    if (first < 0xa0)
        return take_container(reader, first & 0x0f, FL_MSGPACK_ARRAY, value);
    if (first < 0xc0)
        return take_bytes(reader, first & 0x1f, FL_MSGPACK_STR, value);
    return take_formed(reader, first, value);
}

int fl_msgpack_next(struct fl_msgpack *reader, struct fl_msgpack_value *value)
{
    if (room(reader) == 0 || (reader->depth == 0 && reader->has_started))
        return FL_EPROTO;
    if (reader->depth > 0)
        reader->left[reader->depth - 1]--;
    reader->has_started = true;
    int rc = take_value(reader, value);
    if (rc < 0) {
        reader->at = reader->end; /* nothing can be read after it, */
        reader->depth = 1;        /* and the object never ends */
        reader->left[0] = UINT64_MAX;
        return rc;
    }
    while (reader->depth > 0 && reader->left[reader->depth - 1] == 0)
        reader->depth--;
    return 0;
}

int fl_msgpack_skip_to(struct fl_msgpack *reader, uint32_t depth)
{
    struct fl_msgpack_value value;
    while (reader->depth > depth) {
        int rc = fl_msgpack_next(reader, &value);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int fl_msgpack_skip(struct fl_msgpack *reader)
{
    struct fl_msgpack_value value;
    uint32_t depth = reader->depth;
    int rc = fl_msgpack_next(reader, &value);
    return rc < 0 ? rc : fl_msgpack_skip_to(reader, depth);
}

int fl_msgpack_finish(const struct fl_msgpack *reader)
{
    return reader->has_started && reader->depth == 0 && room(reader) == 0 ? 0 : FL_EPROTO;
}

/* ---- writer ---- */

static void put(struct fl_msgpack_writer *writer, struct fl_bytes bytes)
{
    if (writer->rc == 0)
        writer->rc = fl_buf_append(writer->out, bytes);
}

/* `first`, then `number` in `width` bytes. */
static void put_head(struct fl_msgpack_writer *writer, uint8_t first, uint64_t number, size_t width)
{
    uint8_t head[9] = {first};
    for (size_t i = 0; i < width; i++)
        head[1 + i] = (uint8_t)(number >> 8 * (width - 1 - i));
    put(writer, fl_bytes(head, 1 + width));
}

void fl_msgpack_put_nil(struct fl_msgpack_writer *writer)
{
    put_head(writer, 0xc0, 0, 0);
}

void fl_msgpack_put_bool(struct fl_msgpack_writer *writer, bool value)
{
    put_head(writer, value ? 0xc3 : 0xc2, 0, 0);
}

void fl_msgpack_put_uint(struct fl_msgpack_writer *writer, uint64_t value)
{
    if (value < 0x80)
        put_head(writer, (uint8_t)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_head(writer, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_head(writer, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_head(writer, 0xce, value, 4);
    else
        put_head(writer, 0xcf, value, 8);
}

void fl_msgpack_put_int(struct fl_msgpack_writer *writer, int64_t value)
{
    if (value >= 0)
        fl_msgpack_put_uint(writer, (uint64_t)value);
    else if (value >= -32)
        put_head(writer, (uint8_t)value, 0, 0);
    else if (value >= INT8_MIN)
        put_head(writer, 0xd0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        put_head(writer, 0xd1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        put_head(writer, 0xd2, (uint64_t)value, 4);
    else
        put_head(writer, 0xd3, (uint64_t)value, 8);
}

void fl_msgpack_put_real(struct fl_msgpack_writer *writer, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_head(writer, 0xcb, bits, 8);
}

/* Heads whose length takes 1, 2 or 4 bytes; `first` is that of the 1-byte form. */
static void put_length(struct fl_msgpack_writer *writer, uint8_t first, uint64_t n)
{
    if (n <= UINT8_MAX)
        put_head(writer, first, n, 1);
    else if (n <= UINT16_MAX)
        put_head(writer, (uint8_t)(first + 1), n, 2);
    else if (n <= UINT32_MAX)
        put_head(writer, (uint8_t)(first + 2), n, 4);
    else if (writer->rc == 0)
        writer->rc = FL_ELIMIT;
}

void fl_msgpack_put_str(struct fl_msgpack_writer *writer, struct fl_bytes text)
{
    if (text.n < 32)
        put_head(writer, (uint8_t)(0xa0 | text.n), 0, 0);
    else
        put_length(writer, 0xd9, text.n);
    put(writer, text);
}

void fl_msgpack_put_bin(struct fl_msgpack_writer *writer, struct fl_bytes bytes)
{
    put_length(writer, 0xc4, bytes.n);
    put(writer, bytes);
}

/* Containers have no 1-byte form: below 16 the count lies in the first byte. */
static void put_count(struct fl_msgpack_writer *writer, uint8_t small, uint8_t first,
                      uint32_t count)
{
    if (count < 16)
        put_head(writer, (uint8_t)(small | count), 0, 0);
    else if (count <= UINT16_MAX)
        put_head(writer, first, count, 2);
    else
        put_head(writer, (uint8_t)(first + 1), count, 4);
}

void fl_msgpack_put_array(struct fl_msgpack_writer *writer, uint32_t count)
{
    put_count(writer, 0x90, 0xdc, count);
}

void fl_msgpack_put_map(struct fl_msgpack_writer *writer, uint32_t pairs)
{
    put_count(writer, 0x80, 0xde, pairs);
}
