// The module tritium._native: its types and functions.
// Knows nothing of how they work; the only file that knows nanobind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "../blas.h"
#include "../integer/check.h"
#include "../ceilings.h"
#include "../limits.h"
#include "../threads.h"
#include "array.h"
#include "convert.h"
#include "numpy.h"
#include "events.h"
#include "fused_product.h"
#include "index.h"
#include "tape_object.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tritium::python {
namespace {

// A new reference, or the Python exception that was set instead.
nb::object checked(PyObject* made) {
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

template <class T>
void keep(T*& slot, PyObject* value) {
  PyObject* before = reinterpret_cast<PyObject*>(slot);
  Py_XINCREF(value);
  slot = reinterpret_cast<T*>(value);
  Py_XDECREF(before);
}

bool derives(nb::handle type, PyTypeObject* base) {
  return PyType_Check(type.ptr()) && PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), base);
}

void setup(nb::object tensor_type, nb::object device, nb::object interpreter, nb::tuple identity_types) {
  if (!derives(tensor_type, globals.array_type)) throw nb::type_error("setup: tensor_type must derive from Array.");
  if (!PyContextVar_CheckExact(interpreter.ptr())) throw nb::type_error("setup: interpreter must be a ContextVar.");
  keep(globals.tensor_type, tensor_type.ptr());
  keep(globals.device, device.ptr());
  keep(globals.interpreter, interpreter.ptr());
  keep(globals.identity_types, identity_types.ptr());
}

Isa isa_named(const std::string& name) {
  Isa isa;
  if (!isa_from_name(name.c_str(), &isa))
    throw nb::value_error(("there is no instruction set '" + name + "'.").c_str());
  return isa;
}

Isa isa_of(const std::optional<std::string>& name) {
  const Isa isa = name ? isa_named(*name) : current_isa();
  if (!isa_available(isa))
    throw nb::value_error(("the instruction set " + std::string(isa_name(isa)) + " is not available here.").c_str());
  return isa;
}

nb::object kernel(const char* name, const std::optional<std::string>& isa) {
  Isa from;
  const Entry* entry = find(name, isa_of(isa), Tiled::yes, &from);
  return entry ? checked(kernel_object(entry, from)) : nb::none();
}

// All kernels of a name that the instruction set in use can run, best first.
nb::list kernels(const char* name, const std::optional<std::string>& isa) {
  const Isa which = isa_of(isa);
  nb::list out;
  const Entry* last = nullptr;
  for (const Tiled tiled : {Tiled::yes, Tiled::no}) {
    Isa from;
    const Entry* entry = find(name, which, tiled, &from);
    if (entry && entry != last) out.append(checked(kernel_object(entry, from)));
    last = entry;
  }
  return out;
}

int64_t illegal_code(nb::handle array) {
  if (!is_array(array.ptr()) || !reinterpret_cast<Array*>(array.ptr())->usable())
    throw nb::type_error("first_illegal: a tensor in CPU memory is needed.");
  View w;
  fill_view(reinterpret_cast<Array*>(array.ptr()), w);
  return first_illegal(w);
}

nb::list kernel_names(const std::optional<std::string>& isa) {
  const Table& all = table(isa_of(isa));
  nb::list names;
  for (std::size_t i = 0; i < all.count; ++i) names.append(nb::str(all.first[i].name));
  return names;
}

template <bool (*Holds)(Isa)>
nb::list isas_where() {
  nb::list names;
  for (int i = 0; i < kIsas; ++i)
    if (Holds(static_cast<Isa>(i))) names.append(nb::str(isa_name(static_cast<Isa>(i))));
  return names;
}

nb::dict class_dict(const ClassStats& c, bool sized) {
  nb::dict d;
  if (sized) d["size"] = c.size;
  d["live"] = c.live;
  d["free"] = c.free;
  d["hits"] = c.hits;
  d["misses"] = c.misses;
  d["live_bytes"] = c.live_bytes;
  d["free_bytes"] = c.free_bytes;
  return d;
}

nb::dict stats_dict() {
  const PoolStats s = pool_stats();
  nb::dict d;
  d["allocations"] = s.allocations;
  d["frees"] = s.frees;
  d["hits"] = s.hits;
  d["misses"] = s.misses;
  d["failed"] = s.failed;
  d["trims"] = s.trims;
  d["live_blocks"] = s.small.live + s.medium.live + s.large.live;
  d["current_bytes"] = s.current_bytes;
  d["peak_bytes"] = s.peak_bytes;
  d["current_block_bytes"] = s.current_block_bytes;
  d["peak_block_bytes"] = s.peak_block_bytes;
  d["pooled_bytes"] = s.pooled_bytes;
  d["pooled_blocks"] = s.pooled_blocks;
  d["peak_pooled_bytes"] = s.peak_pooled_bytes;
  d["largest_free_bytes"] = s.largest_free;
  d["small_block_size"] = s.small_block_size;
  d["large_block_threshold"] = s.large_block_threshold;
  d["limit"] = s.limit;
  d["memory_limit"] = s.memory_limit;
  const auto share = [](int64_t part, int64_t whole) {
    return whole ? 1.0 - static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  d["fragmentation"] = share(s.largest_free, s.pooled_bytes);
  d["internal_waste"] = share(s.current_bytes, s.current_block_bytes);
  nb::dict tiers;
  tiers["small"] = class_dict(s.small, false);
  tiers["medium"] = class_dict(s.medium, false);
  tiers["large"] = class_dict(s.large, false);
  d["tiers"] = tiers;
  nb::list classes;
  for (const ClassStats& c : s.classes) classes.append(class_dict(c, true));
  d["classes"] = classes;
  return d;
}

void configure(int64_t small, int64_t large, int64_t limit, int64_t memory) {
  pool_configure(small, large, limit, memory);
}

nb::dict blas_dict() {
  const BlasInfo info = blas_info();
  nb::dict d;
  d["vendor"] = nb::str(info.vendor);
  d["config"] = nb::str(info.config);
  d["path"] = nb::str(info.path);
  return d;
}

nb::list ceiling_peaks() {
  nb::list all;
  for (const Peak& peak : peaks()) {
    const char* absence = isa_detected(peak.isa) ? "" : peak.absence;
    all.append(nb::make_tuple(peak.name, peak.kind, peak.instruction, absence));
  }
  return all;
}

// Threads, samples and seconds as given by Python, checked.
void check_sampling(int threads, int samples, double seconds) {
  if (threads < 1 || threads > 4096 || samples < 1 || samples > 10000 || !(seconds > 0 && seconds <= 10))
    throw nb::value_error("ceilings: 1 to 4096 threads, 1 to 10000 samples of up to 10 seconds.");
}

std::vector<double> ceiling_peak_rates(const std::string& name, int threads, int samples, double seconds) {
  check_sampling(threads, samples, seconds);
  const Peak* peak = find_peak(name.c_str());
  if (!peak || !isa_detected(peak->isa))
    throw nb::value_error(("the instruction " + name + " is not available here.").c_str());
  nb::gil_scoped_release released;
  return peak_rates(*peak, threads, samples, seconds);
}

std::vector<std::vector<double>> ceiling_stream_rates(const std::vector<std::string>& names, int64_t bytes, int threads,
                                                      int samples, double seconds) {
  check_sampling(threads, samples, seconds);
  if (bytes < 1 || bytes > (int64_t{1} << 40)) throw nb::value_error("ceilings: 1 to 2^40 bytes a thread.");
  std::vector<Stream> streams(names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    if (!stream_from_name(names[i].c_str(), &streams[i]))
      throw nb::value_error(("there is no stream '" + names[i] + "'.").c_str());
  nb::gil_scoped_release released;
  return stream_rates(streams, bytes, threads, samples, seconds);
}

void set_pool_alarm(nb::object alarm) {
  if (!alarm.is_none() && !PyCallable_Check(alarm.ptr()))
    throw nb::type_error("set_pool_alarm: a callable (live, limit) or None is needed.");
  keep(globals.alarm, alarm.is_none() ? nullptr : alarm.ptr());
}

void set_pool_trim_watcher(nb::object watcher) {
  if (!watcher.is_none() && !PyCallable_Check(watcher.ptr()))
    throw nb::type_error("set_pool_trim_watcher: a callable (trims, released) or None is needed.");
  keep(globals.trim_watcher, watcher.is_none() ? nullptr : watcher.ptr());
}

void set_buffer_watcher(nb::object watcher) {
  if (!watcher.is_none() && !PyCallable_Check(watcher.ptr()))
    throw nb::type_error("set_buffer_watcher: a callable (kind, address, nbytes, reused) or None is needed.");
  keep(globals.watcher, watcher.is_none() ? nullptr : watcher.ptr());
}

nb::object carry_out(nb::handle what, nb::handle fn, nb::args args) {
  const Acting now(what.ptr());
  return fn(*args);
}

void add_type(nb::module_& m, const char* name, PyTypeObject*& slot, PyTypeObject* made) {
  if (!made) throw nb::python_error();
  slot = made;
  m.attr(name) = nb::handle(reinterpret_cast<PyObject*>(made));
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native runtime of Tritium: memory, threads, kernels and the replay of calls.";
  add_type(m, "Storage", globals.storage_type, make_storage_type());
  add_type(m, "Held", globals.held_type, make_held_type());
  add_type(m, "Array", globals.array_type, make_array_type());
  add_type(m, "Kernel", globals.kernel_type, make_kernel_type());
  add_type(m, "Row", globals.row_type, make_row_type());
  static PyTypeObject *tape_type, *product_type, *spans_type, *again_type, *bound_type, *guarded_type, *quick_type;
  add_type(m, "Tape", tape_type, make_tape_type());
  add_type(m, "FusedProduct", product_type, make_fused_product_type());
  add_type(m, "Program", globals.program_type, make_program_type());
  static PyTypeObject* programs_type;
  add_type(m, "Programs", programs_type, make_programs_type());
  add_type(m, "Caller", globals.caller_type, make_caller_type());
  add_type(m, "BoundCaller", bound_type, make_bound_caller_type());
  add_type(m, "Guarded", guarded_type, make_guarded_type());
  add_type(m, "Again", again_type, make_again_type());
  add_type(m, "Quick", quick_type, make_quick_type());
  add_type(m, "Spans", spans_type, make_spans_type());

  m.attr("MAX_INPUTS") = kMaxInputs;
  m.attr("MAX_OUTPUTS") = kMaxOutputs;

  m.def("setup", setup, "tensor_type"_a, "device"_a.none(), "interpreter"_a, "identity_types"_a,
        "Tells the runtime which Python classes and objects it works with; called once.");
  m.def("set_size_type", [](nb::handle type) {
          if (!set_size_type(type.ptr())) throw nb::python_error();
        }, "size_type"_a, "Tells the runtime the class of sizes that vary while a function is traced.");
  m.def("set_fast", [](bool on) { globals.fast = on; }, "on"_a, "Whether remembered calls are replayed.");
  m.def("set_usual", [](bool on) { globals.usual = on; }, "on"_a,
        "Whether new tensors that name no device are made on the CPU, of any size.");
  m.def("numpy_setup",
        [](nb::handle api, nb::handle array_type, nb::handle dtypes, nb::handle kinds) {
          if (!numpy_setup(api.ptr(), array_type.ptr(), dtypes.ptr(), kinds.ptr())) throw nb::python_error();
        },
        "api"_a, "array_type"_a, "dtypes"_a, "kinds"_a,
        "Tells the runtime of NumPy: the capsule of its API, its class of arrays, and its dtypes beside ours, by their codes.");
  m.def("is_fast", [] { return globals.fast; });
  m.def("repeat",
        [](nb::handle x, nb::handle repeats, nb::handle axis) {
          PyObject* result = repeat_natively(x.ptr(), repeats.ptr(), axis.ptr());
          return result || PyErr_Occurred() ? checked(result) : nb::none();
        },
        "x"_a.none(), "repeats"_a.none(), "axis"_a.none(), "Slices of x repeated along an axis; None: for Python.");
  m.def("overlap", [](nb::handle a, nb::handle b) { return checked(array_overlap(a.ptr(), b.ptr())); }, "a"_a, "b"_a,
        "0: disjoint memory; 1: the same elements in the same places; 2: anything else.");
  m.def("number", [](nb::handle value, nb::handle dtype) { return checked(number_tensor(value.ptr(), dtype.ptr())); },
        "value"_a, "dtype"_a, "A Python number as a 0-d tensor; None where it does not fit the dtype.");
  m.def("dlpack",
        [](nb::handle array, nb::handle max_version, nb::handle copy) {
          return checked(dlpack_export(array.ptr(), max_version.ptr(), copy.ptr()));
        },
        "array"_a, "max_version"_a.none() = nb::none(), "copy"_a.none() = nb::none(), "The array as a DLPack capsule.");
  m.def("from_dlpack_capsule",
        [](nb::handle capsule, bool writable) { return checked(dlpack_import(capsule.ptr(), writable)); }, "capsule"_a,
        "writable"_a,
        "(Storage, dtype code, shape, strides, offset) of a DLPack capsule, which is used up. A versioned capsule says "
        "whether its memory may be written; for others `writable` does.");

  m.def("tensor_over", [](nb::handle data, nb::handle kinds) { return checked(tensor_over(data.ptr(), kinds.ptr())); },
        "data"_a, "kinds"_a, "A tensor over a buffer's own memory; None where it is empty, odd or of no plain dtype.");
  m.def("tensor_of_lists",
        [](nb::handle data, nb::handle dtype, nb::handle kinds) {
          return checked(tensor_of_lists(data.ptr(), dtype.ptr(), kinds.ptr()));
        },
        "data"_a, "dtype"_a.none(), "kinds"_a,
        "A tensor of nested lists of Python's own numbers; None where they are anything else, or do not fit.");
  m.def("exact", [](nb::handle value) { return checked(exact(value.ptr())); }, "value"_a.none(),
        "A hashable stand-in in which 0.0 and -0.0, 1 and 1.0 and True stay apart.");
  m.def("order_nodes", [](nb::handle roots, nb::handle known) { return checked(order_nodes(roots.ptr(), known.ptr())); },
        "roots"_a, "known"_a, "Every node that the roots need, inputs first; known nodes need nothing.");
  m.def("kernel", kernel, "name"_a, "isa"_a.none() = nb::none(), "The kernel of that name, or None.");
  m.def("kernels", kernels, "name"_a, "isa"_a.none() = nb::none(), "The kernels of that name that can run here, best first.");
  m.def("kernel_names", kernel_names, "isa"_a.none() = nb::none());
  m.def("isas", isas_where<isa_available>, "The instruction sets available here, narrow to wide.");
  m.def("isas_built", isas_where<isa_built>, "Those that this build has kernels for.");
  m.def("isas_detected", isas_where<isa_detected>, "Those that this CPU can run, built or not.");
  m.def("isa", [] { return isa_name(current_isa()); }, "The instruction set in use.");
  m.def("isa_base", [](const std::string& isa) { return isa_name(base(isa_named(isa))); }, "isa"_a,
        "The instruction set whose kernels serve all but integer products.");
  m.def("first_illegal", illegal_code, "array"_a, "Where the first illegal code of a packed array stands; -1: none.");
  m.def("isa_rejected", [] { return isa_rejected(); }, "What TRITIUM_ISA asked for in vain, or None.");

  m.def("blas_load", [](const char* path) { return blas_load(path); }, "path"_a,
        "Loads OpenBLAS from this file; whether it has what is needed.");
  m.def("blas_info", blas_dict, "vendor, config and path of the BLAS in use.");

  m.def("num_threads", num_threads);
  m.def("set_num_threads", set_num_threads, "n"_a);
  m.def("available_threads", available_threads);
  m.def("memory_limit", memory_limit, "Bytes this process may use; 0 when unknown.");
  m.def("memory_used", memory_used, "Bytes resident in this process; 0 when unknown.");

  m.def("pool_stats", stats_dict);
  m.def("pool_reset_stats", pool_reset_stats);
  m.def("pool_swap_peak", pool_swap_peak, "peak"_a, "Sets the recorded peak; returns the one before.");
  m.def("pool_trim", pool_trim, "keep_bytes"_a = 0,
        "Gives idle blocks back to the system until at most keep_bytes are pooled; returns the bytes released.");
  m.def("pool_configure", configure, "small_block_size"_a, "large_block_threshold"_a, "limit"_a, "memory_limit"_a = 0,
        "Sets all four; memory_limit 0: live blocks have no limit of their own.");
  m.def("set_pool_alarm", set_pool_alarm, "alarm"_a.none(),
        "Calls alarm(live, limit) when live blocks rise above 90 % of the memory limit; None: nobody is called.");
  m.def("set_pool_trim_watcher", set_pool_trim_watcher, "watcher"_a.none(),
        "Calls watcher(trims, released) after the pool gave idle blocks back by itself, at the next allocation or release; "
        "None: nobody is called.");
  m.def("pool_bench", pool_bench, "nbytes"_a, "n"_a,
        "ns for one allocation and its release.");
  m.def("ceiling_peaks", ceiling_peaks, "(name, kind, instruction, why it is absent or \"\") of every multiply-add.");
  m.def("ceiling_peak_rates", ceiling_peak_rates, "name"_a, "threads"_a, "samples"_a, "seconds"_a,
        "Operations a second, one value a sample.");
  m.def("ceiling_stream_rates", ceiling_stream_rates, "streams"_a, "nbytes"_a, "threads"_a, "samples"_a, "seconds"_a,
        "Bytes a second, one list a stream; nbytes is the slice of one thread.");
  m.def("set_buffer_watcher", set_buffer_watcher, "watcher"_a.none());

  m.def("now_ns", now_ns, "The clock of spans: that of time.perf_counter_ns.");
  m.def("add_span", [](nb::handle what, int64_t start, int64_t elapsed) { add_span(what.ptr(), start, elapsed); },
        "what"_a.none(), "start_ns"_a, "elapsed_ns"_a, "Gives all who record a span of this thread.");
  m.def("span_cost_ns", span_cost_ns, "n"_a, "ns that a span costs, the mean of n.");
  m.def("acting", [] { return acting ? nb::borrow(acting) : nb::none(); },
        "What this thread carries out, noted while there is a buffer watcher; or None.");
  m.def("carry_out", carry_out, "fn(*args), with `what` as the answer of acting meanwhile.");
}

}  // namespace tritium::python
