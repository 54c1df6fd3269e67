// Replays recorded kernel calls: `replay CALLS RESULTS THREADS`. Linked with the kernels of one level, possibly for a
// foreign processor and run by an emulator. tests/runtime_ref/cpu/neon.py writes CALLS and compares RESULTS.
//
// CALLS holds, per call, little-endian: the length of the name and the name; the number of memory blocks and each
// one's size and content; the number of tensors and each one's block (-1: none) and offset; the number of integer
// parameters and these; the number of float parameters and these. All integers have 64 bits. RESULTS receives the
// contents of all blocks after each call.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernel.h"

using mnnk::Entry;

extern "C" {
const Entry* mnnk_first();
const Entry* mnnk_next(const Entry*);
const char* mnnk_name(const Entry*);
const char* mnnk_signature(const Entry*, int part);
}

namespace {

constexpr size_t GUARD = 64;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "replay: %s\n", why.c_str());
  std::exit(1);
}

template <class T> T read_one(std::FILE* file) {
  T value;
  if (std::fread(&value, sizeof value, 1, file) != 1) stop("the recording ends early");
  return value;
}

template <class T> std::vector<T> read_many(std::FILE* file, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  if (std::fread(values.data(), sizeof(T), values.size(), file) != values.size()) stop("the recording ends early");
  return values;
}

// Memory between guard words, aligned like numpy's.
struct Block {
  explicit Block(std::vector<char> content) : size(content.size()), memory(size + 3 * GUARD, GUARD_BYTE) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    data = memory.data() + GUARD + (GUARD - address % GUARD) % GUARD;
    std::memcpy(data, content.data(), size);
  }
  bool intact() const {
    const auto is_guard = [](char byte) { return byte == GUARD_BYTE; };
    return std::all_of(memory.data(), const_cast<const char*>(data), is_guard) &&
           std::all_of(const_cast<const char*>(data) + size, memory.data() + memory.size(), is_guard);
  }

  static constexpr char GUARD_BYTE = 0x5a;
  size_t size;
  std::vector<char> memory;
  char* data;
};

const Entry* find(const std::string& name) {
  for (const Entry* entry = mnnk_first(); entry; entry = mnnk_next(entry))
    if (name == mnnk_name(entry)) return entry;
  stop("no kernel " + name);
}

int64_t count_names(const Entry* entry, int part) {
  const std::string names = mnnk_signature(entry, part);
  return names == "(none)" || names == "none" ? 0 : 1 + std::count(names.begin(), names.end(), ',');
}

// The names and values of a call, for messages.
std::string signature(const Entry* entry, const std::vector<int64_t>& params) {
  std::string text = std::string(" of ") + mnnk_signature(entry, 0) + " with " + mnnk_signature(entry, 1) + " =";
  for (const int64_t each : params) text += " " + std::to_string(each);
  return text;
}

void replay(std::FILE* calls, std::FILE* results, const std::string& name, mnnk::Pool& pool) {
  const Entry* entry = find(name);
  std::vector<Block> blocks;
  const auto block_count = read_one<int64_t>(calls);
  for (int64_t i = 0; i < block_count; ++i) blocks.emplace_back(read_many<char>(calls, read_one<int64_t>(calls)));
  const auto places = read_many<int64_t>(calls, 2 * read_one<int64_t>(calls));
  auto params = read_many<int64_t>(calls, read_one<int64_t>(calls));
  auto scalars = read_many<float>(calls, read_one<int64_t>(calls));
  if (static_cast<int64_t>(places.size()) != 2 * count_names(entry, 0) ||
      static_cast<int64_t>(params.size()) != count_names(entry, 1) ||
      static_cast<int64_t>(scalars.size()) != count_names(entry, 2))
    stop(name + " has other parameters");
  const auto given = params;
  params.push_back(0);  // kernels without parameters still read one of each
  scalars.push_back(0);
  std::vector<void*> args;
  for (size_t i = 0; i < places.size(); i += 2)
    args.push_back(places[i] < 0 ? nullptr : blocks[static_cast<size_t>(places[i])].data + places[i + 1]);
  entry->function({args.data(), params.data(), scalars.data(), pool});
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& block = blocks[i];
    if (!block.intact()) stop(name + " writes outside block " + std::to_string(i) + signature(entry, given));
    if (std::fwrite(block.data, 1, block.size, results) != block.size) stop("cannot write");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) stop("usage: replay CALLS RESULTS THREADS");
  std::FILE* calls = std::fopen(argv[1], "rb");
  std::FILE* results = std::fopen(argv[2], "wb");
  if (!calls || !results) stop("cannot open the files");
  mnnk::Pool pool(std::atoi(argv[3]));
  for (int64_t length; std::fread(&length, sizeof length, 1, calls) == 1;) {
    const auto name = read_many<char>(calls, length);
    replay(calls, results, {name.begin(), name.end()}, pool);
  }
  return std::fclose(results) == 0 ? 0 : 1;
}
