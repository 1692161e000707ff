/* SPDX-License-Identifier: Apache-2.0 */
/* ZMQ messages of several frames, and the options all our sockets share (dependencies.md 3.3). */
#ifndef FL_KVEVENTS_WIRE_H
#define FL_KVEVENTS_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "base/bytes.h"

#define FL_KV_FRAME_MAX (64 << 20) /* selection.md 11.1: a larger frame drops the peer */
#define FL_KV_HWM 100000   /* messages a lagging side queues before it drops; vLLM's own value */
#define FL_KV_FRAMES_MAX 4 /* the longest message anybody sends has so many */

struct fl_kv_message {
    zmq_msg_t frame[FL_KV_FRAMES_MAX];
    size_t count; /* frames that came; those beyond FL_KV_FRAMES_MAX are not kept */
};

/* Receives a whole message without waiting. False when none is there. Close it after use. */
bool fl_kv_message_recv(struct fl_kv_message *message, void *socket);
void fl_kv_message_close(struct fl_kv_message *message);
/* Lent until the message is closed. i < count and < FL_KV_FRAMES_MAX. */
struct fl_bytes fl_kv_message_frame(struct fl_kv_message *message, size_t i);

/* Sends the frames as one message without waiting. False when it cannot be queued. */
bool fl_kv_send(void *socket, const struct fl_bytes *frames, size_t count);

/* Sequence numbers: 8 bytes, big endian. */
bool fl_kv_sequence_read(struct fl_bytes frame, uint64_t *sequence);
void fl_kv_sequence_write(uint8_t frame[8], uint64_t sequence);

/* A socket with linger 0, the caps above, keepalive, reconnects and heartbeats as
 * selection.md 11.1. NULL when ZMQ has none left. */
void *fl_kv_socket(void *zmq, int type, const char *endpoint);
int fl_kv_socket_fd(void *socket);

#endif
