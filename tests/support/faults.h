/* support/faults.h - makes the n-th call of a kind fail, of those that libtern and the test program make of the C
 * library (support/faults.c, linked with --wrap; libraries' own calls are left alone).
 *
 * It also counts what is alive: blocks, mappings, descriptors.  Thread: any, but one fault at a time. */
#ifndef TERN_TEST_FAULTS_H
#define TERN_TEST_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

enum fault {
    FAULT_MEMORY,    /* malloc calloc realloc aligned_alloc: no memory */
    FAULT_MAP,       /* mmap: no memory */
    FAULT_THREAD,    /* pthread_create: try again later */
    FAULT_OPEN,      /* open openat fopen opendir: too many files */
    FAULT_STAT,      /* fstat lstat stat: input/output error */
    FAULT_READ,      /* read pread: input/output error */
    FAULT_SHORT,     /* read pread write pwrite: one byte, and no error */
    FAULT_INTERRUPT, /* the same: interrupted */
    FAULT_DISK_FULL, /* write pwrite: half of it, and from then on no space */
    FAULT_ALLOCATE,  /* fallocate: no space */
    FAULT_SYNC,      /* fsync: input/output error */
    FAULT_TRUNCATE,  /* ftruncate: input/output error */
    FAULT_LOCK,      /* flock: no locks */
    FAULT_RENAME,    /* rename renameat: input/output error */
    N_FAULTS
};
extern const char *const fault_names[N_FAULTS];

/* The n-th call of the kind from now on fails, n >= 1. */
void fault_arm(enum fault kind, int n);
/* No faults any more.  Did that call come? */
bool fault_disarm(void);

struct fault_alive {
    size_t blocks, mappings, files;
};
struct fault_alive fault_alive(void);

#endif
