/* SPDX-License-Identifier: Apache-2.0 */
/* A hostile peer of either end of ext_proc. The input is a script: one byte says what to do,
 * messages follow with a two-byte length.
 *
 *   first byte: bit 0 the picker (0) or the caller (1); bit 1 mode BUFFERED / a request without a
 * body; bits 2-3 the tap; bits 4-7 how finely messages are cut then steps: op, [length high, length
 * low, bytes]
 *
 * What is checked: nothing leaks or reads outside (sanitizers), answers keep the order headers,
 * body, trailers of each direction, every answer reads back, pieces and queue stay within their
 * caps, one decision a stream, and a message that is read in pieces equals itself read whole. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "extproc/caller.h"
#include "extproc/headers.h"
#include "extproc/picker.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

struct script {
    struct fl_bytes left;
    size_t cut;
};

static bool next_op(struct script *script, uint8_t *op)
{
    if (script->left.n == 0)
        return false;
    *op = script->left.p[0];
    script->left = fl_bytes_skip(script->left, 1);
    return true;
}

static struct fl_bytes next_bytes(struct script *script)
{
    if (script->left.n < 2)
        return FL_BYTES("");
    size_t n = (size_t)script->left.p[0] << 8 | script->left.p[1];
    struct fl_bytes bytes = fl_bytes_head(fl_bytes_skip(script->left, 2), n);
    script->left = fl_bytes_skip(script->left, 2 + bytes.n);
    return bytes;
}

/* Slices of `piece` bytes, each an exact allocation. */
static struct fl_chain cut_into(struct fl_bytes bytes, size_t piece)
{
    struct fl_chain chain = {0};
    for (size_t at = 0; at < bytes.n; at += piece)
        fl_chain_push(&chain, fl_slice_copy(fl_bytes_head(fl_bytes_skip(bytes, at), piece), NULL));
    return chain;
}

static bool same_bytes(const struct fl_chain *a, const struct fl_chain *b)
{
    if (a->bytes != b->bytes)
        return false;
    uint8_t *flat = malloc(a->bytes + 1);
    fl_chain_copy_out(a, 0, flat, a->bytes);
    bool same = fl_chain_eq_bytes(b, fl_bytes(flat, a->bytes));
    free(flat);
    return same;
}

/* Read whole and in pieces, a message is the same. */
static void compare_readings(struct fl_bytes bytes, size_t piece)
{
    struct fl_extproc_request whole = {0}, cut = {0};
    struct fl_extproc_response whole_answer = {0}, cut_answer = {0};
    struct fl_chain a = cut_into(bytes, bytes.n + 1), b = cut_into(bytes, piece);

    int rc = fl_extproc_request_read(&whole, &a);
    must(rc == fl_extproc_request_read(&cut, &b));
    must(whole.kind == cut.kind && whole.end_of_stream == cut.end_of_stream &&
         whole.headers.count == cut.headers.count && whole.dropped_headers == cut.dropped_headers &&
         fl_bytes_eq(whole.metadata, cut.metadata) && same_bytes(&whole.body, &cut.body));
    a = cut_into(bytes, bytes.n + 1);
    b = cut_into(bytes, piece);
    rc = fl_extproc_response_read(&whole_answer, &a);
    must(rc == fl_extproc_response_read(&cut_answer, &b));
    must(whole_answer.kind == cut_answer.kind &&
         whole_answer.body_change == cut_answer.body_change &&
         whole_answer.end_of_stream == cut_answer.end_of_stream &&
         whole_answer.mutation.set_count == cut_answer.mutation.set_count &&
         whole_answer.mutation.remove_count == cut_answer.mutation.remove_count &&
         whole_answer.http_status == cut_answer.http_status &&
         same_bytes(&whole_answer.body, &cut_answer.body));
    fl_extproc_request_fini(&whole);
    fl_extproc_request_fini(&cut);
    fl_extproc_response_fini(&whole_answer);
    fl_extproc_response_fini(&cut_answer);
}

static bool take_message(struct fl_chain *out, struct fl_chain *message)
{
    uint8_t prefix[5];

    *message = (struct fl_chain){0};
    if (out->bytes == 0)
        return false;
    must(out->bytes >= sizeof(prefix));
    fl_chain_copy_out(out, 0, prefix, sizeof(prefix));
    size_t n =
        (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 | prefix[4];
    must(prefix[0] == 0 && out->bytes >= sizeof(prefix) + n);
    fl_chain_ref_range(message, out, sizeof(prefix), n);
    fl_chain_consume(out, sizeof(prefix) + n);
    return true;
}

/* ---- the picker ---- */

struct watched {
    struct fl_picker picker;
    bool is_picking, is_over, answers_inline;
    int request_phase, response_phase; /* 0 nothing, 1 headers, 2 body, 3 trailers answered */
    unsigned decisions, first_tokens, ends;
};

static const struct fl_picker_decision decision = {
    .endpoint = {(const uint8_t *)"10.0.0.7:8000", 13}};

static void on_pick(void *owner, const struct fl_picker_question *question)
{
    struct watched *w = owner;
    must(!w->is_picking && w->decisions == 0);
    must(question->request_id.n > 0);
    w->is_picking = true;
    if (w->answers_inline) {
        w->is_picking = false;
        fl_picker_answer(&w->picker, &decision);
    }
}

static void on_pick_cancelled(void *owner)
{
    struct watched *w = owner;
    must(w->is_picking);
    w->is_picking = false;
}

static void on_first_token(void *owner)
{
    struct watched *w = owner;
    must(w->first_tokens++ == 0);
}

static void on_response_end(void *owner)
{
    struct watched *w = owner;
    must(w->ends++ == 0);
}

static const struct fl_picker_ops picker_ops = {
    .on_pick = on_pick,
    .on_pick_cancelled = on_pick_cancelled,
    .on_first_token = on_first_token,
    .on_response_end = on_response_end,
};

static void check_order(struct watched *w, const struct fl_extproc_response *answer)
{
    switch (answer->kind) {
    case FL_EXTPROC_REQUEST_HEADERS:
        must(w->request_phase == 0);
        w->request_phase = 1;
        break;
    case FL_EXTPROC_REQUEST_BODY:
        must(w->request_phase == 1 || w->request_phase == 2);
        w->request_phase = 2;
        break;
    case FL_EXTPROC_REQUEST_TRAILERS:
        w->request_phase = 3;
        break;
    case FL_EXTPROC_RESPONSE_HEADERS:
    case FL_EXTPROC_RESPONSE_BODY:
    case FL_EXTPROC_RESPONSE_TRAILERS:
        break;
    case FL_EXTPROC_IMMEDIATE:
        must(answer->http_status >= 400 && answer->http_status < 600);
        w->is_over = true;
        break;
    default:
        must(0);
    }
    if (answer->has_dynamic_metadata)
        must(w->decisions++ == 0);
}

static void drain_picker(struct watched *w, unsigned most)
{
    while (most-- > 0) {
        struct fl_chain out = {0}, message;
        struct fl_extproc_response answer = {0};
        enum fl_picker_next next = fl_picker_next(&w->picker, &out);
        if (next != FL_PICKER_MESSAGE)
            return;
        must(!w->is_over); /* nothing follows an immediate response */
        must(take_message(&out, &message) && out.bytes == 0);
        fl_chain_fini(&out);
        must(fl_extproc_response_read(&answer, &message) == 0);
        must(answer.body_change != FL_EXTPROC_BODY_PIECE || answer.body.bytes <= FL_EXTPROC_CHUNK);
        check_order(w, &answer);
        fl_extproc_response_fini(&answer);
    }
}

static void fuzz_picker(struct script *script, uint8_t first)
{
    const struct fl_picker_config config = {
        .body_mode = first & 2 ? FL_EXTPROC_BODY_BUFFERED : FL_EXTPROC_BODY_FULL_DUPLEX,
        .max_body_bytes = 1000,
        .metadata_prefix = FL_BYTES("x-dynamo-meta-"),
    };
    struct watched w = {0};
    uint8_t op;

    fl_picker_init(&w.picker, &config, &picker_ops, &w);
    while (next_op(script, &op)) {
        struct fl_bytes bytes;
        struct fl_chain message;
        switch (op % 8) {
        case 0:
        case 1:
        case 2:
            bytes = next_bytes(script);
            compare_readings(bytes, script->cut);
            if (fl_picker_is_full(&w.picker))
                drain_picker(&w, 1);
            message = cut_into(bytes, script->cut);
            fl_picker_feed(&w.picker, &message);
            must(w.picker.queue_count <= FL_ARRAY_LEN(w.picker.queue));
            break;
        case 3:
            drain_picker(&w, 1u + op / 8);
            break;
        case 4:
            if (w.is_picking) {
                w.is_picking = false;
                fl_picker_answer(&w.picker, &decision);
            }
            break;
        case 5:
            w.is_picking = false;
            fl_picker_fail(&w.picker, FL_ENO_ENDPOINTS, 0);
            break;
        case 6:
            w.answers_inline = !w.answers_inline;
            break;
        default:
            fl_picker_half_close(&w.picker);
            break;
        }
    }
    drain_picker(&w, 1000);
    fl_picker_fini(&w.picker);
    must(!w.is_picking); /* every pick was answered, failed or cancelled */
}

/* ---- the caller ---- */

static void drain_told(struct fl_chain *out, unsigned *ends)
{
    struct fl_chain message;

    while (take_message(out, &message)) {
        struct fl_extproc_request told = {0};
        must(fl_extproc_request_read(&told, &message) == 0);
        must(told.body.bytes <= FL_CALLER_CHUNK);
        if (told.kind == FL_EXTPROC_RESPONSE_BODY && told.end_of_stream)
            must((*ends)++ == 0);
        fl_extproc_request_fini(&told);
    }
}

static void fuzz_caller(struct script *script, uint8_t first)
{
    const struct fl_caller_config config = {.max_body_bytes = 1000,
                                            .tap = (enum fl_caller_tap)(first >> 2 & 3)};
    const struct fl_bytes subset = FL_BYTES("10.0.0.7:8000");
    struct fl_arena arena;
    struct fl_head head = {.method = FL_BYTES("POST"),
                           .target = FL_BYTES("/"),
                           .authority = FL_BYTES("h"),
                           .arena = &arena};
    struct fl_caller caller;
    struct fl_chain kept = {0}, out = {0};
    unsigned ends = 0;
    uint8_t op;
    bool has_body = (first & 2) == 0, is_uploaded = false, is_head_told = false;

    fl_arena_init(&arena, 0);
    fl_fields_add(&head.fields, &arena, FL_BYTES("a"), FL_BYTES("1"));
    fl_fields_add(&head.fields, &arena, FL_BYTES("A"), FL_BYTES("2"));
    fl_fields_add(&head.fields, &arena, FL_BYTES("X-Prefiller-Url"), FL_BYTES("6.6.6.6:6"));
    fl_extproc_strip_client(&head.fields);
    must(head.fields.count == 2);
    fl_caller_init(&caller, &config, &arena);
    fl_caller_ask(&caller, &out, &head, FL_BYTES("http"), has_body ? &kept : NULL, &subset, 1);
    while (next_op(script, &op)) {
        enum fl_caller_state before = caller.state;
        struct fl_bytes bytes;
        struct fl_chain message;
        switch (op % 8) {
        case 0:
        case 1:
        case 2:
            bytes = next_bytes(script);
            compare_readings(bytes, script->cut);
            message = cut_into(bytes, script->cut);
            fl_caller_hear(&caller, &message);
            break;
        case 3:
            bytes = next_bytes(script);
            if (has_body && !is_uploaded && caller.state == FL_CALLER_ASKING) {
                message = cut_into(bytes, script->cut);
                fl_chain_move(&kept, &message);
                fl_chain_fini(&message);
                is_uploaded = (op & 8) != 0;
                fl_caller_ask_body(&caller, &out, is_uploaded);
            }
            break;
        case 4:
            fl_caller_hear_end(&caller, FL_ECLOSED);
            break;
        case 5:
            if (caller.state == FL_CALLER_DECIDED) {
                fl_caller_tell_head(&caller, &out, 200, &head.fields, subset);
                is_head_told = true;
            }
            break;
        case 6:
            bytes = next_bytes(script);
            message = cut_into(bytes, script->cut);
            for (uint32_t i = 0; i < message.count && is_head_told; i++)
                fl_caller_tell_body(&caller, &out, fl_chain_at(&message, i),
                                    (size_t)(op / 8) << 15);
            fl_chain_fini(&message);
            break;
        default:
            if (is_head_told)
                fl_caller_tell_end(&caller, &out, 0);
            break;
        }
        /* Only these states are left, and only forwards. */
        must(caller.state == before || before == FL_CALLER_ASKING ||
             (before == FL_CALLER_DECIDED && caller.state == FL_CALLER_EVICTED));
        must(caller.new_body.bytes <= config.max_body_bytes);
        must(caller.tail.bytes < 2 * FL_CALLER_TAIL_BYTES + 65536);
        must(caller.state != FL_CALLER_FAILED || caller.rc < 0);
        drain_told(&out, &ends);
    }
    fl_caller_fini(&caller);
    fl_chain_fini(&kept);
    fl_chain_fini(&out);
    fl_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script script = {.left = {data, size}};
    uint8_t first;

    if (!next_op(&script, &first))
        return 0;
    static const size_t cuts[] = {1, 2, 3, 5, 8, 16, 64, 4096};
    script.cut = cuts[first >> 4 & 7];
    if (first & 1)
        fuzz_caller(&script, first);
    else
        fuzz_picker(&script, first);
    return 0;
}
