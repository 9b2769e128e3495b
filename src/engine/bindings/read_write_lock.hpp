// The read-write lock of an index, with a third section for preparing a change while others read.
//
//   read      shared by any number of threads
//   prepare   one thread at a time; readers continue
//   commit    exclusive; Python signal handlers are deferred until it ends
//
// Sections are context managers in C++, so CPython cannot run a signal handler between taking the lock and entering the
// `with` body, or between the end of the body and releasing the lock. The GIL guards the lock's state. Threads wait
// without the GIL, in steps after which signal handlers run, so every wait can be interrupted.
//
// Readers overtake a waiting writer, so that a writer behind one slow reader does not block all others. To prevent
// starvation, new readers wait once the writer has waited for WRITER_PATIENCE and only recent readers hold it up, or
// once it has waited for WRITER_PATIENCE_LIMIT.
#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <new>
#include <unordered_set>
#include <vector>

#include <nanobind/nanobind.h>

#include "bindings/released_gil.hpp"

namespace hitbox {

namespace nb = nanobind;

using Thread = unsigned long;

inline Thread this_thread() { return PyThread_get_thread_ident(); }

[[noreturn]] inline void raise_hitbox_error(const char* message) {
  nb::object error = nb::module_::import_("hitbox.errors").attr("HitboxError");
  PyErr_SetString(error.ptr(), message);
  throw nb::python_error();
}

// Defers the process's Python signal handlers during a commit. They run in the main thread only, so commits in other
// threads need not defer them.
class SignalHandlers {
 public:
  static SignalHandlers& instance() {
    static SignalHandlers& one = *new SignalHandlers;  // never freed: the interpreter may be gone by then
    return one;
  }

  // Returns false if there is nothing to do: in another thread, or if they are deferred already.
  bool defer() {
    if (this_thread() != main_ || owner_) return false;
    owner_ = main_;
    arrived_.clear();
    for (int number = 1; number < NSIG; ++number) {
      PyObject* argument = numbers_[size_t(number)].ptr();
      nb::object handler = nb::steal(PyObject_Vectorcall(get_.ptr(), &argument, 1, nullptr));
      if (!handler.is_valid()) {
        PyErr_Clear();  // not a signal of this system
        continue;
      }
      if (!PyCallable_Check(handler.ptr())) continue;
      saved_.push_back({number, handler});
      if (set(number, record_)) continue;
      saved_.pop_back();  // a handler that ran inside `set` raised
      resume(take_error());
    }
    return true;
  }

  bool arrived() const { return !arrived_.empty(); }

  // Restores the handlers and runs those whose signals arrived. Throws what they raise, chained to `raised`.
  void resume(nb::object raised = nb::object()) {
    raised = restore(raised);
    std::vector<SavedHandler> restored;
    std::vector<int> arrived;
    restored.swap(restored_);
    arrived.swap(arrived_);
    arrived_.reserve(NSIG);
    owner_ = 0;
    for (int number : arrived)
      for (const SavedHandler& one : restored)
        if (one.number == number) {
          PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
          nb::object done = nb::steal(PyObject_CallFunction(one.handler.ptr(), "iO", number, frame ? frame : Py_None));
          if (!done.is_valid()) raised = chained(take_error(), raised);
        }
    if (raised.is_valid()) throw_error(raised);
  }

  // In the child of a fork only the forking thread is left, and it is the main thread now.
  void after_fork_in_child() {
    main_ = this_thread();
    if (!owner_ || owner_ == main_) return;
    arrived_.clear();
    restore(nb::object());
    restored_.clear();
    owner_ = 0;
  }

 private:
  struct SavedHandler {
    int number;
    nb::object handler;
  };

  SignalHandlers() {
    nb::module_ signals = nb::module_::import_("_signal");  // the functions behind `signal`, without its enums
    get_ = signals.attr("getsignal");
    set_ = signals.attr("signal");
    record_ = nb::cpp_function([this](int number, nb::handle) { record(number); });
    main_ = nb::cast<Thread>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
    arrived_.reserve(NSIG);
    for (int number = 0; number < NSIG; ++number) numbers_.push_back(nb::int_(number));
  }

  void record(int number) {
    for (int one : arrived_)
      if (one == number) return;
    arrived_.push_back(number);
  }

  bool set(int number, const nb::object& handler) {
    PyObject* arguments[] = {numbers_[size_t(number)].ptr(), handler.ptr()};
    return nb::steal(PyObject_Vectorcall(set_.ptr(), arguments, 2, nullptr)).is_valid();
  }

  // `signal` runs pending handlers first, possibly ones that are restored already. If one raises, the others must still
  // be restored.
  nb::object restore(nb::object raised) {
    for (size_t i = saved_.size(); i-- > 0;)
      for (int attempt = 0; attempt < 1000 && !set(saved_[i].number, saved_[i].handler); ++attempt)
        raised = chained(take_error(), raised);
    restored_.swap(saved_);
    saved_.clear();
    return raised;
  }

  static nb::object take_error() {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return nb::steal(value);
  }

  static nb::object chained(nb::object later, nb::object earlier) {
    if (earlier.is_valid() && earlier.ptr() != later.ptr())
      PyException_SetContext(later.ptr(), earlier.release().ptr());
    return later;
  }

  [[noreturn]] static void throw_error(const nb::object& raised) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
    throw nb::python_error();
  }

  nb::object get_, set_, record_;
  std::vector<nb::object> numbers_;
  Thread main_ = 0, owner_ = 0;
  std::vector<SavedHandler> saved_, restored_;
  std::vector<int> arrived_;
};

class Lock {
 public:
  Lock() {
    SignalHandlers::instance();
    readers_.reserve(16);
    all().insert(this);
  }
  ~Lock() { all().erase(this); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void begin_read() {
    Thread me = this_thread();
    if (writing_ == me) raise_hitbox_error("this thread is changing the index and cannot read it at the same time");
    check();
    while (!may_read(me)) wait();
    readers_.push_back({me, Clock::now()});
  }

  void end_read() {
    Thread me = this_thread();
    for (size_t i = readers_.size(); i-- > 0;)
      if (readers_[i].thread == me) {
        readers_.erase(readers_.begin() + long(i));
        break;
      }
    if (readers_.empty()) wake();
  }

  void begin_prepare() {
    Thread me = this_thread();
    if (preparing_ == me)
      raise_hitbox_error("this thread is changing the index already; a signal handler cannot change it once more");
    check();
    if (preparing_ || preparer_is_late()) {  // otherwise a thread that never pauses would keep the others out
      WaitingPreparer waiting(*this);
      do wait();
      while (preparing_);
    }
    preparing_ = me;
  }

  void end_prepare() {
    preparing_ = 0;
    wake();
  }

  void begin_commit() {
    Thread me = this_thread();
    if (writing_ == me || reads(me))
      raise_hitbox_error("this thread is reading the index; change it when that is done (not in a signal handler)");
    check();
    SignalHandlers& signals = SignalHandlers::instance();
    bool deferred = signals.defer();
    if (writing_ || !readers_.empty()) {
      WaitingWriter waiting(*this);
      try {
        while (writing_ || !readers_.empty()) {
          if (deferred && signals.arrived()) {  // nothing has changed yet, so handlers may raise
            waiting.end();
            deferred = false;
            signals.resume();
            check();
            deferred = signals.defer();
            waiting.begin();
            continue;
          }
          wait();
        }
      } catch (...) {
        if (deferred) signals.resume();
        throw;
      }
    }
    writing_ = me;
    deferred_ = deferred;
  }

  void end_commit() {
    writing_ = 0;
    wake();
    if (deferred_) {
      deferred_ = false;
      SignalHandlers::instance().resume();
    }
  }

  // In the child of a fork the threads that read or prepared are gone, and a commit of another thread will never finish.
  static void after_fork_in_child() {
    SignalHandlers::instance().after_fork_in_child();
    Thread me = this_thread();
    for (Lock* lock : all()) {
      new (&lock->mutex_) std::mutex;  // it may have been locked
      new (&lock->changed_) std::condition_variable;
      lock->waiting_threads_ = lock->waiting_writers_ = lock->waiting_preparers_ = 0;
      std::vector<Reader> own;
      for (const Reader& one : lock->readers_)
        if (one.thread == me) own.push_back(one);
      lock->readers_.swap(own);
      if (lock->preparing_ != me) lock->preparing_ = 0;
      if (lock->writing_ && lock->writing_ != me) {
        lock->broken_ = true;
        lock->writing_ = 0;
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Reader {
    Thread thread;
    Clock::time_point since;
  };
  // Counts a waiting writer. It is not counted while it runs signal handlers: those may read, and would wait for their
  // own thread.
  class WaitingWriter {
   public:
    explicit WaitingWriter(Lock& lock) : lock_(lock) { begin(); }
    ~WaitingWriter() { end(); }
    WaitingWriter(const WaitingWriter&) = delete;
    WaitingWriter& operator=(const WaitingWriter&) = delete;
    void begin() {
      counted_ = true;
      if (!lock_.waiting_writers_++) lock_.writer_waiting_since_ = Clock::now();
    }
    void end() {
      if (!counted_) return;
      counted_ = false;
      if (--lock_.waiting_writers_) lock_.writer_waiting_since_ = Clock::now();  // for the next writer
      else lock_.wake();
    }

   private:
    Lock& lock_;
    bool counted_ = false;
  };
  // Counts a thread that waits to prepare.
  class WaitingPreparer {
   public:
    explicit WaitingPreparer(Lock& lock) : lock_(lock) {
      if (!lock_.waiting_preparers_++) lock_.preparer_waiting_since_ = Clock::now();
    }
    ~WaitingPreparer() {
      if (lock_.waiting_preparers_) --lock_.waiting_preparers_;  // a fork resets the count
      lock_.preparer_waiting_since_ = Clock::now();              // for the next one
    }
    WaitingPreparer(const WaitingPreparer&) = delete;
    WaitingPreparer& operator=(const WaitingPreparer&) = delete;

   private:
    Lock& lock_;
  };
  bool preparer_is_late() const {
    return waiting_preparers_ && Clock::now() - preparer_waiting_since_ >= PREPARER_PATIENCE;
  }
  static constexpr auto WAIT_STEP = std::chrono::milliseconds(10);
  static constexpr auto PREPARER_PATIENCE = std::chrono::milliseconds(5);
  static constexpr auto WRITER_PATIENCE = std::chrono::milliseconds(10);
  static constexpr auto WRITER_PATIENCE_LIMIT = std::chrono::seconds(1);

  static std::unordered_set<Lock*>& all() {
    static std::unordered_set<Lock*>& locks = *new std::unordered_set<Lock*>;
    return locks;
  }

  void check() const {
    if (broken_)
      raise_hitbox_error("this index was being changed by another thread when the process forked; open it again");
  }

  bool reads(Thread me) const {
    for (const Reader& one : readers_)
      if (one.thread == me) return true;
    return false;
  }

  bool may_read(Thread me) const {
    if (writing_) return false;
    if (!waiting_writers_ || reads(me)) return true;
    Clock::time_point now = Clock::now();
    if (now - writer_waiting_since_ < WRITER_PATIENCE) return true;
    if (now - writer_waiting_since_ >= WRITER_PATIENCE_LIMIT) return false;
    for (const Reader& one : readers_)
      if (now - one.since >= WRITER_PATIENCE) return true;  // the writer waits for this slow reader anyway
    return false;
  }

  // Waits for a change, at most WAIT_STEP. Signal handlers run afterwards and may throw.
  void wait() {
    unsigned long seen = changes_;
    ++waiting_threads_;
    {
      ReleasedGil free;
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, WAIT_STEP, [&] { return changes_ != seen; });
    }
    if (waiting_threads_) --waiting_threads_;  // a fork resets the count
    if (PyErr_CheckSignals()) throw nb::python_error();
    check();
  }

  void wake() {
    if (!waiting_threads_) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++changes_;
    }
    changed_.notify_all();
  }

  std::vector<Reader> readers_;
  Thread preparing_ = 0, writing_ = 0;
  bool deferred_ = false, broken_ = false;
  int waiting_preparers_ = 0, waiting_writers_ = 0;
  Clock::time_point preparer_waiting_since_;
  Clock::time_point writer_waiting_since_;
  int waiting_threads_ = 0;  // threads of any kind
  unsigned long changes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A section of a lock as a context manager. One object may be entered by many threads at once.
template <void (Lock::*begin)(), void (Lock::*end)()>
class Section {
 public:
  explicit Section(nb::object lock) : owner_(lock), lock_(nb::cast<Lock*>(lock)) {}

  static void bind(nb::module_& m, const char* name) {
    nb::class_<Section>(m, name)
        .def(nb::init<nb::object>(), nb::arg("lock"))
        .def("__enter__", [](Section& self) { (self.lock_->*begin)(); })
        .def(
            "__exit__", [](Section& self, nb::handle, nb::handle, nb::handle) { (self.lock_->*end)(); },
            nb::arg().none(), nb::arg().none(), nb::arg().none());
  }

 private:
  nb::object owner_;
  Lock* lock_;
};

inline void bind_locks(nb::module_& m) {
  nb::class_<Lock>(m, "Lock").def(nb::init<>());
  Section<&Lock::begin_read, &Lock::end_read>::bind(m, "Read");
  Section<&Lock::begin_prepare, &Lock::end_prepare>::bind(m, "Prepare");
  Section<&Lock::begin_commit, &Lock::end_commit>::bind(m, "Commit");
  nb::module_ os = nb::module_::import_("os");
  if (!nb::hasattr(os, "register_at_fork")) return;  // Windows does not fork
  nb::dict at_fork;
  at_fork["after_in_child"] = nb::cpp_function(&Lock::after_fork_in_child);
  os.attr("register_at_fork")(**at_fork);
}

}  // namespace hitbox
