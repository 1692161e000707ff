/* SPDX-License-Identifier: Apache-2.0 */
#include "kvevents/wire.h"

#include <string.h>

static bool has_more(void *socket)
{
    int more = 0;
    size_t size = sizeof(more);
    return zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) == 0 && more != 0;
}

bool fl_kv_message_recv(struct fl_kv_message *message, void *socket)
{
    message->count = 0;
    do {
        zmq_msg_t spare;
        bool is_kept = message->count < FL_KV_FRAMES_MAX;
        zmq_msg_t *frame = is_kept ? &message->frame[message->count] : &spare;
        zmq_msg_init(frame);
        /* Parts of one message arrive together: only the first can be missing. */
        if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(frame);
            fl_kv_message_close(message);
            return false;
        }
        message->count++;
        if (!is_kept)
            zmq_msg_close(frame);
    } while (has_more(socket));
    return true;
}

void fl_kv_message_close(struct fl_kv_message *message)
{
    for (size_t i = 0; i < message->count && i < FL_KV_FRAMES_MAX; i++)
        zmq_msg_close(&message->frame[i]);
    message->count = 0;
}

struct fl_bytes fl_kv_message_frame(struct fl_kv_message *message, size_t i)
{
    return fl_bytes(zmq_msg_data(&message->frame[i]), zmq_msg_size(&message->frame[i]));
}

bool fl_kv_send(void *socket, const struct fl_bytes *frames, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0);
        /* Once the first frame is taken, ZMQ takes the others. */
        if (zmq_send(socket, frames[i].p, frames[i].n, flags) < 0)
            return false;
    }
    return true;
}

bool fl_kv_sequence_read(struct fl_bytes frame, uint64_t *sequence)
{
    if (frame.n != 8)
        return false;
    *sequence = 0;
    for (size_t i = 0; i < 8; i++)
        *sequence = *sequence << 8 | frame.p[i];
    return true;
}

void fl_kv_sequence_write(uint8_t frame[8], uint64_t sequence)
{
    for (size_t i = 0; i < 8; i++)
        frame[i] = (uint8_t)(sequence >> 8 * (7 - i));
}

void *fl_kv_socket(void *zmq, int type, const char *endpoint)
{
    static const struct {
        int option, value;
    } options[] = {
        {ZMQ_LINGER, 0}, /* a peer that is gone must not hold up the end of the context */
        {ZMQ_RCVHWM, FL_KV_HWM},
        {ZMQ_SNDHWM, FL_KV_HWM},
        {ZMQ_RECONNECT_IVL, 100},
        {ZMQ_RECONNECT_IVL_MAX, 5000},
        {ZMQ_TCP_KEEPALIVE, 1},
        {ZMQ_HEARTBEAT_IVL, 5000},
        {ZMQ_HEARTBEAT_TIMEOUT, 15000},
        {ZMQ_HEARTBEAT_TTL, 15000},
    };
    void *socket = zmq_socket(zmq, type);
    if (socket == NULL)
        return NULL;
    for (size_t i = 0; i < FL_ARRAY_LEN(options); i++)
        zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof(options[i].value));
    int64_t frame_max = FL_KV_FRAME_MAX;
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max));
    /* On for every name, a host with both kinds of address would be tried at the wrong one first.
     */
    int ipv6 = strncmp(endpoint, "tcp://[", 7) == 0;
    zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
    return socket;
}

int fl_kv_socket_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}
