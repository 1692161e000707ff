/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "apps/app.h"
#include "base/bytes.h"

static const struct fl_app apps[] = {
    {"epp", "endpoint picker: answers a proxy's ext_proc questions with the best worker",
     fl_app_epp},
    {"gateway", "L7 inference gateway: rules over REST, one question to a picker per request",
     fl_app_gateway},
    {"rule", "adds, lists, shows and removes rules of a running gateway", fl_app_rule},
    {"explain", "asks a running picker why a request went where it went", fl_app_explain},
    {"engine", "simulated inference engine with prefix cache, metrics and KV events",
     fl_app_engine},
    {"replay", "sends a trace to an OpenAI endpoint and measures the answers", fl_app_replay},
    {"demo", "starts a whole system on loopback, replays a trace, shows the result", fl_app_demo},
};

static void write_usage(FILE *out)
{
    fprintf(
        out,
        "Usage: fairlead PROGRAM [OPTIONS]\n\n"
        "Fairlead routes inference requests to the engine that already holds their prefix.\n\n");
    for (size_t i = 0; i < FL_ARRAY_LEN(apps); i++)
        fprintf(out, "  %-10s %s\n", apps[i].name, apps[i].about);
    fprintf(out, "\nfairlead PROGRAM --help shows its options; fairlead --version the version.\n");
}

int main(int argc, char **argv)
{
    /* A peer that went away is an error of write(2), not the end of the process. */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        write_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        write_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0) {
        printf("fairlead %s\n", FL_VERSION);
        return 0;
    }
    for (size_t i = 0; i < FL_ARRAY_LEN(apps); i++) {
        if (strcmp(argv[1], apps[i].name) == 0)
            return apps[i].main(argc - 1, argv + 1);
    }
    fprintf(stderr, "fairlead: unknown program \"%s\"\n\n", argv[1]);
    write_usage(stderr);
    return 2;
}
