/* The arguments that name and change a job file: FILE, --set, --optimizer and --map, shared by plan, submit and resume.
 */
#ifndef DTD_CLIENT_SPEC_ARGS_H
#define DTD_CLIENT_SPEC_ARGS_H

#include "client/spec.h"

#include <argp.h>

/* A job file has about 80 keys, so 256 overrides are never too few. */
#define SPEC_SETS_MAX 256

struct spec_args {
    const char *file; /* the job file; NULL: not given */
    const char
        *sets[SPEC_SETS_MAX + 4]; /* values of --set, of --optimizer and --map as such; resume appends two more */
    int n_sets;
    char optimizer[64], map[4096]; /* the overrides that --optimizer and --map stand for */
};

/* The children of a command's argp: the global options, then these. The command's parser sets both inputs at
 * ARGP_KEY_INIT: child_inputs[0] to its struct global, child_inputs[1] to its struct spec_args. An argument that the
 * command's parser leaves unknown becomes `file`; the command itself checks that `file` is set where it needs one. */
extern const struct argp_child spec_args_children[];

/* Whether an override sets this key. */
bool spec_args_has(const struct spec_args *a, const char *key);

/* Reads the job file and applies the overrides, as spec_read does. */
NODISCARD err_t spec_args_read(const struct spec_args *a, struct job_spec *ret, struct why *why);

#endif
