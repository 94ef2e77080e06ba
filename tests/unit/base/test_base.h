// What every cmocka program here needs.
#ifndef TEST_BASE_H
#define TEST_BASE_H

// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#endif
