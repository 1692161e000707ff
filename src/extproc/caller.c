/* SPDX-License-Identifier: Apache-2.0 */
#include "extproc/caller.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define JOINT_ROOM 16384
#define JOINED_MAX 2048 /* larger pieces of the tail keep their own chunk */

void fl_caller_init(struct fl_caller *caller, const struct fl_caller_config *config,
                    struct fl_arena *arena)
{
    *caller = (struct fl_caller){.config = *config, .arena = arena, .is_same = true};
    fl_joint_init(&caller->joint, JOINT_ROOM, NULL);
}

static void drop_new_body(struct fl_caller *caller)
{
    fl_chain_fini(&caller->new_body);
    caller->is_body_replaced = false;
}

void fl_caller_fini(struct fl_caller *caller)
{
    drop_new_body(caller);
    fl_chain_fini(&caller->immediate_body);
    fl_chain_fini(&caller->tail);
    fl_joint_fini(&caller->joint);
}

/* ---- asking ---- */

void fl_caller_ask(struct fl_caller *caller, struct fl_chain *out, const struct fl_head *head,
                   struct fl_bytes scheme, const struct fl_chain *kept,
                   const struct fl_bytes *subset, size_t subset_count)
{
    static const struct fl_extproc_protocol full_duplex = {FL_EXTPROC_BODY_FULL_DUPLEX,
                                                           FL_EXTPROC_BODY_FULL_DUPLEX, true};
    const struct fl_field pseudo[] = {
        {FL_BYTES(":method"), head->method},
        {FL_BYTES(":path"), head->target},
        {FL_BYTES(":authority"), head->authority},
        {FL_BYTES(":scheme"), scheme},
    };

    assert(caller->state == FL_CALLER_ASKING && subset_count > 0);
    caller->kept = kept;
    fl_mutated_init(&caller->mutated, &head->fields, caller->arena);
    struct fl_extproc_request_out what = {
        .kind = FL_EXTPROC_REQUEST_HEADERS,
        .pseudo = pseudo,
        .pseudo_count = FL_ARRAY_LEN(pseudo),
        .headers = &head->fields,
        .end_of_stream = kept == NULL,
        .has_subset = true,
        .subset = subset,
        .subset_count = subset_count,
        .protocol = caller->config.sends_protocol_config ? &full_duplex : NULL,
    };
    fl_extproc_request_write(out, &what);
}

static void ask_piece(struct fl_caller *caller, struct fl_chain *out, size_t n, bool is_end)
{
    struct fl_extproc_request_out what = {
        .kind = FL_EXTPROC_REQUEST_BODY,
        .body = caller->kept,
        .body_offset = caller->sent_bytes,
        .body_bytes = n,
        .end_of_stream = is_end,
    };
    fl_extproc_request_write(out, &what);
    caller->sent_bytes += n;
    caller->body_messages++;
}

void fl_caller_ask_body(struct fl_caller *caller, struct fl_chain *out, bool is_end)
{
    if (caller->state != FL_CALLER_ASKING || caller->is_body_sent)
        return;
    assert(caller->kept != NULL);
    /* A full chunk waits for one more byte or the end: the last message must be the one that says
     * so. */
    while (caller->kept->bytes - caller->sent_bytes > FL_CALLER_CHUNK)
        ask_piece(caller, out, FL_CALLER_CHUNK, false);
    if (is_end) {
        ask_piece(caller, out, caller->kept->bytes - caller->sent_bytes, true);
        caller->is_body_sent = true;
    }
}

/* ---- the decision ---- */

static void fail(struct fl_caller *caller, int rc)
{
    caller->state = FL_CALLER_FAILED;
    caller->rc = rc;
    drop_new_body(caller);
}

static void decide(struct fl_caller *caller)
{
    bool is_header = !fl_bytes_is_absent(caller->header_destination);
    bool is_metadata = !fl_bytes_is_absent(caller->metadata_destination);

    caller->candidate_count = fl_endpoint_list(
        is_header ? caller->header_destination : caller->metadata_destination, caller->candidates);
    caller->is_destination_conflict =
        is_header && is_metadata &&
        !fl_bytes_eq(caller->header_destination, caller->metadata_destination);
    caller->state = FL_CALLER_DECIDED;
}

static bool has_destination(const struct fl_caller *caller)
{
    return !fl_bytes_is_absent(caller->header_destination) ||
           !fl_bytes_is_absent(caller->metadata_destination);
}

/* A destination is a handful of addresses; a longer one is read as far as this. */
#define DESTINATION_MAX 1024

static struct fl_bytes keep_destination(struct fl_caller *caller, struct fl_bytes value,
                                        struct fl_bytes before)
{
    value = fl_bytes_head(value, DESTINATION_MAX);
    /* Repeated in every message by some pickers: must not cost arena each time. */
    if (fl_bytes_eq(value, before) && !fl_bytes_is_absent(before))
        return before;
    if (caller->mutated.copied_bytes + value.n > FL_MUTATION_MAX_BYTES)
        return before;
    caller->mutated.copied_bytes += value.n;
    return fl_arena_copy(caller->arena, value);
}

/* Header mutation and dynamic metadata of an answer. */
static int apply_answer(struct fl_caller *caller, struct fl_extproc_response *answer)
{
    for (uint32_t i = 0; i < answer->mutation.set_count; i++) {
        const struct fl_extproc_set *set = &answer->mutation.sets[i];
        if (!set->is_dropped && fl_bytes_eq_nocase(set->name, FL_BYTES(FL_EXTPROC_DESTINATION)))
            caller->header_destination =
                keep_destination(caller, set->value, caller->header_destination);
    }
    if (answer->has_dynamic_metadata) {
        struct fl_bytes value;
        int rc = fl_extproc_read_destination(answer->dynamic_metadata, &answer->arena, &value);
        if (rc < 0)
            return rc;
        if (!fl_bytes_is_absent(value))
            caller->metadata_destination =
                keep_destination(caller, value, caller->metadata_destination);
    }
    return fl_mutated_apply(&caller->mutated, &answer->mutation);
}

/* ---- the body that comes back ---- */

/* How many bytes of `bytes` equal the kept body at the place of comparison, which moves on. */
static size_t match_kept(struct fl_caller *caller, struct fl_bytes bytes)
{
    size_t matched = 0;

    while (matched < bytes.n && caller->kept != NULL && caller->same_slice < caller->kept->count) {
        struct fl_bytes kept = fl_bytes_skip(
            fl_slice_bytes(fl_chain_at(caller->kept, caller->same_slice)), caller->same_offset);
        struct fl_bytes left = fl_bytes_skip(bytes, matched);
        if (kept.n == 0) { /* only now: a last slice may have grown meanwhile */
            caller->same_slice++;
            caller->same_offset = 0;
            continue;
        }
        size_t n = kept.n < left.n ? kept.n : left.n;
        size_t same = 0;
        if (memcmp(kept.p, left.p, n) == 0)
            same = n;
        else
            while (kept.p[same] == left.p[same])
                same++;
        matched += same;
        caller->same_offset += same;
        if (same < n)
            break;
    }
    caller->same_bytes += matched;
    return matched;
}

/* From here on the new body is stored: what was equal is referenced. */
static void start_new_body(struct fl_caller *caller)
{
    caller->is_same = false;
    caller->is_body_replaced = true;
    if (caller->same_bytes > 0)
        fl_chain_ref_range(&caller->new_body, caller->kept, 0, caller->same_bytes);
}

static int take_body(struct fl_caller *caller, struct fl_chain *body)
{
    struct fl_slice slice;

    while (fl_chain_pop(body, &slice)) {
        if (caller->is_same) {
            size_t matched = match_kept(caller, fl_slice_bytes(slice));
            if (matched == slice.n) {
                fl_slice_unref(&slice);
                continue;
            }
            start_new_body(caller);
            struct fl_slice rest = fl_slice_sub(slice, matched, slice.n - matched);
            fl_slice_unref(&slice);
            slice = rest;
        }
        fl_chain_push(&caller->new_body, slice);
        if (caller->new_body.bytes > caller->config.max_body_bytes)
            return FL_ETOO_LARGE;
    }
    return 0;
}

/* The whole new body has come. One that is shorter than the kept one is another body too. */
static void finish_body(struct fl_caller *caller)
{
    size_t kept_bytes = caller->kept != NULL ? caller->kept->bytes : 0;

    if (caller->is_same && (caller->same_bytes != kept_bytes || !caller->is_body_sent))
        start_new_body(caller);
    decide(caller);
}

static void restart_body(struct fl_caller *caller)
{
    drop_new_body(caller);
    caller->is_same = true;
    caller->same_bytes = caller->same_offset = 0;
    caller->same_slice = 0;
}

/* `body` or `clear_body`: the whole body in one change, whatever had been streamed before. */
static int replace_body(struct fl_caller *caller, struct fl_extproc_response *answer)
{
    restart_body(caller);
    int rc = answer->body_change == FL_EXTPROC_BODY_REPLACED ? take_body(caller, &answer->body) : 0;
    if (rc == 0)
        finish_body(caller);
    return rc;
}

static bool is_whole_change(const struct fl_extproc_response *answer)
{
    return answer->body_change == FL_EXTPROC_BODY_REPLACED ||
           answer->body_change == FL_EXTPROC_BODY_CLEARED;
}

/* ---- hearing ---- */

static int hear_header_answer(struct fl_caller *caller, struct fl_extproc_response *answer)
{
    int rc = apply_answer(caller, answer);
    if (rc < 0)
        return rc;
    if (caller->kept == NULL)
        decide(caller);
    else if (is_whole_change(answer))
        return replace_body(caller, answer);
    return 0;
}

static int hear_plain_body_answer(struct fl_caller *caller)
{
    bool is_last;

    caller->plain_answers++;
    is_last = caller->is_body_sent && caller->plain_answers >= caller->body_messages;
    /* Pieces under way end with their own flag. */
    if (!caller->has_pieces && (has_destination(caller) || is_last))
        decide(caller);
    return 0;
}

static int hear_body_answer(struct fl_caller *caller, struct fl_extproc_response *answer)
{
    int rc = apply_answer(caller, answer);
    if (rc < 0 || caller->kept == NULL) /* no body was asked about: its answer says nothing more */
        return rc;
    if (is_whole_change(answer))
        return replace_body(caller, answer);
    if (answer->body_change == FL_EXTPROC_BODY_KEPT)
        return hear_plain_body_answer(caller);
    caller->has_pieces = true;
    rc = take_body(caller, &answer->body);
    if (rc == 0 && answer->end_of_stream)
        finish_body(caller);
    return rc;
}

/* gateway.md 9.6 */
static void hear_immediate(struct fl_caller *caller, struct fl_extproc_response *answer,
                           enum fl_caller_state state)
{
    struct fl_fields *fields = &caller->immediate_fields;
    bool is_json = false;

    caller->immediate_status =
        answer->http_status >= 200 && answer->http_status <= 599 ? (int)answer->http_status : 500;
    size_t copied = 0;
    for (uint32_t i = 0; i < answer->mutation.set_count; i++) {
        const struct fl_extproc_set *set = &answer->mutation.sets[i];
        copied += set->name.n + set->value.n;
        if (fl_mutation_may_set(set) && copied <= FL_MUTATION_MAX_BYTES)
            fl_fields_add_copy(fields, caller->arena, set->name, set->value);
    }
    fl_chain_move(&caller->immediate_body, &answer->body);
    if (caller->immediate_body.count > 0)
        is_json = fl_chain_at(&caller->immediate_body, 0).p[0] == '{';
    if (fl_fields_find(fields, FL_BYTES("content-type")) == NULL)
        fl_fields_add(fields, caller->arena, FL_BYTES("content-type"),
                      is_json ? FL_BYTES("application/json") : FL_BYTES("text/plain"));
    caller->state = state;
    caller->is_gone = true;
    drop_new_body(caller);
    fl_chain_fini(&caller->tail);
}

static void hear_while_asking(struct fl_caller *caller, struct fl_extproc_response *answer)
{
    int rc = 0;

    switch (answer->kind) {
    case FL_EXTPROC_REQUEST_HEADERS:
        rc = hear_header_answer(caller, answer);
        break;
    case FL_EXTPROC_REQUEST_BODY:
        rc = hear_body_answer(caller, answer);
        break;
    case FL_EXTPROC_IMMEDIATE:
        hear_immediate(caller, answer, FL_CALLER_IMMEDIATE);
        break;
    default: /* other kinds say nothing about the request */
        break;
    }
    if (rc < 0)
        fail(caller, rc);
}

void fl_caller_hear(struct fl_caller *caller, struct fl_chain *message)
{
    struct fl_extproc_response answer = {0};
    bool is_open = caller->state == FL_CALLER_ASKING || caller->state == FL_CALLER_DECIDED;

    if (!is_open) {
        fl_chain_fini(message);
        return;
    }
    int rc = fl_extproc_response_read(&answer, message);
    if (caller->state == FL_CALLER_ASKING) {
        if (rc < 0)
            fail(caller, rc == FL_EDEPTH ? FL_EPROTO : rc);
        else
            hear_while_asking(caller, &answer);
    } else if (rc < 0) {
        caller->is_gone = true; /* the response goes on without the picker */
    } else if (answer.kind == FL_EXTPROC_IMMEDIATE) {
        hear_immediate(caller, &answer, FL_CALLER_EVICTED);
    }
    fl_extproc_response_fini(&answer);
}

void fl_caller_hear_end(struct fl_caller *caller, int rc)
{
    assert(rc < 0);
    caller->is_gone = true;
    if (caller->state == FL_CALLER_ASKING)
        fail(caller, rc);
}

/* ---- telling ---- */

void fl_caller_tell_head(struct fl_caller *caller, struct fl_chain *out, int status,
                         const struct fl_fields *fields, struct fl_bytes served)
{
    char text[16];

    if (caller->is_gone || caller->is_head_told)
        return;
    assert(caller->state == FL_CALLER_DECIDED);
    caller->is_head_told = true;
    snprintf(text, sizeof(text), "%d", status);
    /* Under both keys: some pickers read the plain one. */
    const struct fl_field pseudo[] = {{FL_BYTES(":status"), fl_bytes_of(text)},
                                      {FL_BYTES("status"), fl_bytes_of(text)}};
    struct fl_extproc_request_out what = {
        .kind = FL_EXTPROC_RESPONSE_HEADERS,
        .pseudo = pseudo,
        .pseudo_count = FL_ARRAY_LEN(pseudo),
        .headers = fields,
        .served = served,
    };
    fl_extproc_request_write(out, &what);
}

/* All of `body`, in messages of at most a chunk. False, and the tap is cut, if the picker lags. */
static bool tell_chain(struct fl_caller *caller, struct fl_chain *out, const struct fl_chain *body,
                       size_t offset, size_t n, size_t waiting_bytes)
{
    if (waiting_bytes + n > FL_CALLER_TAP_MAX) {
        fl_caller_cut_tap(caller);
        return false;
    }
    for (size_t end = offset + n; offset < end;) {
        size_t piece = end - offset < FL_CALLER_CHUNK ? end - offset : FL_CALLER_CHUNK;
        struct fl_extproc_request_out what = {
            .kind = FL_EXTPROC_RESPONSE_BODY,
            .body = body,
            .body_offset = offset,
            .body_bytes = piece,
        };
        fl_extproc_request_write(out, &what);
        offset += piece;
    }
    return true;
}

static void tell_slice(struct fl_caller *caller, struct fl_chain *out, struct fl_slice slice,
                       size_t waiting_bytes)
{
    struct fl_chain one = {0};

    fl_chain_push(&one, fl_slice_ref(slice));
    tell_chain(caller, out, &one, 0, one.bytes, waiting_bytes);
    fl_chain_fini(&one);
}

/* The last 16 KiB and what is left of the slice they begin in. */
static void keep_tail(struct fl_caller *caller, struct fl_slice slice)
{
    struct fl_chain *tail = &caller->tail;
    struct fl_slice kept = {0};

    /* A token an event, each in a read buffer of its own, must not pin a buffer each. */
    if (slice.n <= JOINED_MAX)
        kept = fl_joint_copy(&caller->joint, fl_slice_bytes(slice));
    fl_joint_push(tail, kept.p != NULL ? kept : fl_slice_ref(slice));
    while (tail->bytes - fl_chain_at(tail, 0).n >= FL_CALLER_TAIL_BYTES)
        fl_chain_consume(tail, fl_chain_at(tail, 0).n);
}

void fl_caller_tell_body(struct fl_caller *caller, struct fl_chain *out, struct fl_slice slice,
                         size_t waiting_bytes)
{
    bool is_first = !caller->is_first_told;

    if (caller->is_gone || caller->is_end_told || slice.n == 0)
        return;
    caller->is_first_told = true;
    if (caller->is_tap_cut || caller->config.tap == FL_CALLER_TAP_NONE)
        return;
    if (is_first || caller->config.tap == FL_CALLER_TAP_ALL)
        tell_slice(caller, out, slice, waiting_bytes);
    else if (caller->config.tap == FL_CALLER_TAP_EDGES)
        keep_tail(caller, slice);
}

void fl_caller_cut_tap(struct fl_caller *caller)
{
    caller->is_tap_cut = true;
    fl_chain_fini(&caller->tail);
    fl_joint_fini(&caller->joint);
}

void fl_caller_tell_end(struct fl_caller *caller, struct fl_chain *out, size_t waiting_bytes)
{
    if (caller->is_gone || caller->is_end_told)
        return;
    assert(caller->is_head_told);
    caller->is_end_told = true;
    if (caller->tail.bytes > 0) {
        size_t n = caller->tail.bytes;
        size_t skip = n > FL_CALLER_TAIL_BYTES ? n - FL_CALLER_TAIL_BYTES : 0;
        tell_chain(caller, out, &caller->tail, skip, n - skip, waiting_bytes);
        fl_chain_fini(&caller->tail);
    }
    struct fl_extproc_request_out what = {.kind = FL_EXTPROC_RESPONSE_BODY, .end_of_stream = true};
    fl_extproc_request_write(out, &what);
}
