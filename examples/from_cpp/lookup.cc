// Asks the daemon for the best config of a problem: ./lookup SOCKET KERNEL M=4096

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct Value {
  std::string text;                                 // of a text, a number, a bool or nil
  std::vector<std::pair<std::string, Value>> items;  // of a map, or with empty names of an array
  const Value &get(const std::string &name) const {
    static const Value none;
    for (const auto &item : items)
      if (item.first == name) return item.second;
    return none;
  }
};

Value read(std::FILE *in) {
  const int kind = std::getc(in);
  if (kind == EOF) throw std::runtime_error("the daemon has closed the connection");
  const auto number = [&] (int bytes) {
    std::uint64_t value = 0;
    while (bytes--) value = value << 8 | static_cast<std::uint8_t>(std::getc(in));
    return value;
  };
  Value found;
  std::size_t size = 0;
  const auto items = [&] (bool named) {
    while (size--) {
      std::string name = named ? read(in).text : "";
      found.items.emplace_back(std::move(name), read(in));
    }
  };
  const auto text = [&] () {
    while (size--) found.text += static_cast<char>(std::getc(in));
  };
  if (kind < 0x80 || kind >= 0xE0) found.text = std::to_string(static_cast<std::int8_t>(kind));
  else if (kind < 0x90) size = kind & 15, items(true);
  else if (kind < 0xA0) size = kind & 15, items(false);
  else if (kind < 0xC0) size = kind & 31, text();
  else if (kind == 0xC2 || kind == 0xC3) found.text = kind == 0xC3 ? "true" : "false";
  else if (kind == 0xCB) {
    const std::uint64_t bits = number(8);
    double value;
    std::memcpy(&value, &bits, 8);
    found.text = std::to_string(value);
  } else if (kind >= 0xCC && kind <= 0xCF) found.text = std::to_string(number(1 << (kind - 0xCC)));
  else if (kind >= 0xD0 && kind <= 0xD3) {
    const int shift = 64 - (8 << (kind - 0xD0));
    found.text = std::to_string(static_cast<std::int64_t>(number(1 << (kind - 0xD0)) << shift) >> shift);
  } else if (kind >= 0xD9 && kind <= 0xDB) size = number(1 << (kind - 0xD9)), text();
  else if (kind >= 0xDC && kind <= 0xDF) size = number(kind & 1 ? 4 : 2), items(kind >= 0xDE);
  return found;
}

std::string pack(const std::string &text) {  // of at most 255 bytes
  return std::string("\xD9") + static_cast<char>(text.size()) + text;
}

std::string pack(std::int64_t number) {
  std::string bytes = "\xD3";
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

int main(int count, char **given) {
  sockaddr_un address{AF_UNIX, {}};
  std::strncpy(address.sun_path, given[1], sizeof address.sun_path - 1);
  const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(connection, reinterpret_cast<sockaddr *>(&address), sizeof address)) return std::perror(given[1]), 1;
  std::string request("\x94\x00\x01", 3);  // [0, 1, "lookup", [{"kernel": …, "problem": {…}}]]
  request += pack("lookup") + "\x91\x82" + pack("kernel") + pack(given[2]) + pack("problem");
  request += static_cast<char>(0x80 | (count - 3));
  for (int place = 3; place < count; place++) {
    const std::string field = given[place];
    const std::size_t sign = field.find('=');
    request += pack(field.substr(0, sign)) + pack(std::stoll(field.substr(sign + 1)));
  }
  if (write(connection, request.data(), request.size()) < 0) return std::perror(given[1]), 1;
  const Value response = read(fdopen(connection, "rb"));  // [1, 1, error, answer]
  const Value &error = response.items.at(2).second, &answer = response.items.at(3).second;
  if (!error.items.empty()) return std::cerr << error.get("message").text << "\n", 1;
  std::cout << answer.get("status").text << ":";
  for (const auto &[name, value] : answer.get("config").items) std::cout << " " << name << "=" << value.text;
  std::cout << "\n";
}
