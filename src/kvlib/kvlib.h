/* kvlib/kvlib.h - what the files behind tern/kvq.h share. */
#ifndef TERN_KVLIB_H
#define TERN_KVLIB_H

#include "codec/codec.h"

/* Chooses the kernels of this machine, once per process. */
void ternkv_start(void);

#endif
