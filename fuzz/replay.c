/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of a corpus folder, so that the ordinary test run keeps each
 * crash that was found fixed. Fails when the folder is empty: a corpus that is not there tests
 * nothing. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return -1;
    size_t room = 1 << 16;
    size_t n = 0;
    uint8_t *data = malloc(room);
    while (data != NULL) {
        n += fread(data + n, 1, room - n, file);
        if (n < room)
            break;
        room *= 2;
        uint8_t *grown = realloc(data, room);
        if (grown == NULL)
            free(data);
        data = grown;
    }
    fclose(file);
    if (data == NULL)
        return -1;
    /* An exact copy, so that AddressSanitizer sees a read past the end. */
    uint8_t *exact = malloc(n > 0 ? n : 1);
    if (exact != NULL) {
        for (size_t i = 0; i < n; i++)
            exact[i] = data[i];
        LLVMFuzzerTestOneInput(exact, n);
    }
    free(exact);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    int files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            fprintf(stderr, "corpus %s cannot be opened\n", argv[i]);
            return 1;
        }
        for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
            char path[4096];
            if (entry->d_name[0] == '.')
                continue;
            snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name);
            if (replay_file(path) < 0) {
                fprintf(stderr, "corpus file %s cannot be read\n", path);
                closedir(dir);
                return 1;
            }
            files++;
        }
        closedir(dir);
    }
    printf("%d corpus files replayed\n", files);
    return files > 0 ? 0 : 1;
}
