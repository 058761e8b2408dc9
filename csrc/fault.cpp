// The fault of each thread.
#include "fault.h"

namespace tritium {
namespace {

thread_local Fault pending;

}  // namespace

void set_fault(const Fault& fault) { pending = fault; }

bool has_fault() { return pending.kind != Faulty::nothing; }

Fault take_fault() {
  const Fault found = pending;
  pending = {};
  return found;
}

}  // namespace tritium
