// The reference backend: the readable float64 definition of every primitive op. No speed goals, no composites.
#ifndef BACKEND_REF_REF_BACKEND_H
#define BACKEND_REF_REF_BACKEND_H

#include "backend/backend.h"

extern const backend_type ref_backend_type;

#endif
