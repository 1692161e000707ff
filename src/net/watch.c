/* SPDX-License-Identifier: Apache-2.0 */
#include "net/watch.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

#include "base/alloc.h"
#include "base/log.h"
#include "net/loop_internal.h"

/* What tells two contents apart without reading them. */
struct print {
    bool is_there;
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec mtime;
};

struct fl_watch {
    uv_fs_event_t *events; /* NULL: the directory is not watched at the moment */
    struct fl_loop *loop;
    char *path, *dir;
    dev_t dir_dev;
    ino_t dir_ino;
    struct print told, seen;
    uint64_t first_ms; /* when the change not yet told was first seen */
    struct fl_timer settle, retry;
    struct fl_disposable dispose;
    void (*on_change)(void *owner);
    void *owner;
};

static struct print take_print(const char *path)
{
    struct stat st;
    struct print print;
    memset(&print, 0, sizeof(print));
    if (stat(path, &st) < 0)
        return print;
    print.is_there = true;
    print.dev = st.st_dev;
    print.ino = st.st_ino;
    print.size = st.st_size;
    print.mtime = st.st_mtim;
    return print;
}

static bool print_eq(const struct print *a, const struct print *b)
{
    return a->is_there == b->is_there && a->dev == b->dev && a->ino == b->ino &&
           a->size == b->size && a->mtime.tv_sec == b->mtime.tv_sec &&
           a->mtime.tv_nsec == b->mtime.tv_nsec;
}

static void look(struct fl_watch *watch)
{
    struct print now = take_print(watch->path);
    if (print_eq(&now, &watch->seen))
        return;
    watch->seen = now;
    if (!now.is_there || print_eq(&now, &watch->told)) {
        fl_loop_timer_stop(watch->loop, &watch->settle);
        return;
    }
    uint64_t now_ms = fl_loop_now_ms(watch->loop);
    if (!fl_timer_is_running(&watch->settle))
        watch->first_ms = now_ms;
    if (now_ms - watch->first_ms + FL_WATCH_SETTLE_MS <= FL_WATCH_PATIENCE_MS)
        fl_loop_timer_start(watch->loop, &watch->settle, FL_WATCH_SETTLE_MS);
}

static void on_settled(struct fl_timer *timer)
{
    struct fl_watch *watch = FL_CONTAINER_OF(timer, struct fl_watch, settle);
    watch->told = watch->seen;
    watch->on_change(watch->owner);
}

static void on_handle_closed(uv_handle_t *handle)
{
    fl_free(handle);
}

static void unwatch(struct fl_watch *watch)
{
    if (watch->events == NULL)
        return;
    watch->events->data = NULL;
    uv_close((uv_handle_t *)watch->events, on_handle_closed);
    watch->events = NULL;
}

static bool is_same_dir(const struct fl_watch *watch)
{
    struct stat st;
    return stat(watch->dir, &st) == 0 && st.st_dev == watch->dir_dev && st.st_ino == watch->dir_ino;
}

static void on_event(uv_fs_event_t *events, const char *name, int which, int status)
{
    struct fl_watch *watch = events->data;
    (void)name;
    (void)which;
    (void)status;
    if (watch == NULL)
        return;
    if (!is_same_dir(watch)) {
        unwatch(watch);
        fl_loop_timer_start(watch->loop, &watch->retry, FL_WATCH_RETRY_MS);
    }
    look(watch);
    fl_loop_handler_done(watch->loop);
}

/* 0 or libuv's code. */
static int start(struct fl_watch *watch)
{
    struct stat st;
    if (stat(watch->dir, &st) < 0)
        return uv_translate_sys_error(errno);
    uv_fs_event_t *events = fl_calloc(1, sizeof(*events));
    int rc = uv_fs_event_init(fl_loop_uv(watch->loop), events);
    if (rc != 0) {
        fl_free(events);
        return rc;
    }
    events->data = watch;
    watch->events = events;
    rc = uv_fs_event_start(events, on_event, watch->dir, 0);
    if (rc != 0) {
        unwatch(watch);
        return rc;
    }
    watch->dir_dev = st.st_dev;
    watch->dir_ino = st.st_ino;
    return 0;
}

static void on_retry(struct fl_timer *timer)
{
    struct fl_watch *watch = FL_CONTAINER_OF(timer, struct fl_watch, retry);
    if (start(watch) != 0)
        fl_loop_timer_start(watch->loop, &watch->retry, FL_WATCH_RETRY_MS);
    look(watch);
}

static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return fl_strdup(".");
    return slash == path ? fl_strdup("/") : fl_strndup(path, (size_t)(slash - path));
}

static void watch_free(struct fl_disposable *disposable)
{
    struct fl_watch *watch = FL_CONTAINER_OF(disposable, struct fl_watch, dispose);
    fl_free(watch->path);
    fl_free(watch->dir);
    fl_free(watch);
}

int fl_watch_open(struct fl_loop *loop, const char *path, void (*on_change)(void *owner),
                  void *owner, struct fl_watch **watch, struct fl_error *err)
{
    struct fl_watch *made = fl_calloc(1, sizeof(*made));
    made->loop = loop;
    made->path = fl_strdup(path);
    made->dir = dir_of(path);
    made->on_change = on_change;
    made->owner = owner;
    fl_timer_init(&made->settle, on_settled);
    fl_timer_init(&made->retry, on_retry);
    int rc = start(made);
    if (rc != 0) {
        rc = fl_error_set(err, FL_EIO, "watch %s: directory %s: %s", path, made->dir,
                          uv_strerror(rc));
        watch_free(&made->dispose);
        return rc;
    }
    made->told = made->seen = take_print(path);
    *watch = made;
    return 0;
}

void fl_watch_close(struct fl_watch *watch)
{
    if (watch == NULL)
        return;
    unwatch(watch);
    fl_loop_timer_stop(watch->loop, &watch->settle);
    fl_loop_timer_stop(watch->loop, &watch->retry);
    fl_loop_dispose(watch->loop, &watch->dispose, watch_free);
}
