// Functions of include/rank_emulator.h for messages between the hosts of two ranks.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#include "runtime_cuda.h"
#include "runtime_ranks.h"

using namespace pkb::emulator;

#define PKB_RANKS extern "C" __attribute__((visibility("default")))

// As include/rank_emulator.h has it.
struct PkbEnvelope {
  int peer, tag, context;
  size_t bytes;
};

namespace pkb::emulator {

struct Message {
  uint64_t id;              // object by which the receiver comes after the sender
  PkbEnvelope envelope;     // peer: the sender
  std::vector<char> content;
  uint64_t received_by = 0; // object by which a sender that waits comes after the receiver; 0: nobody takes it so far
};
struct Receive {
  uint64_t id;
  PkbEnvelope wanted;
  std::shared_ptr<Message> message;
};
// Of a rank: what has come and nobody has asked for, and what it has asked for, in their orders.
struct Mailbox {
  std::deque<std::shared_ptr<Message>> unexpected;
  std::deque<Receive> receives;
};
struct Mail {
  std::map<int, Mailbox> boxes;
  std::map<uint64_t, std::shared_ptr<Message>> sent;  // that a sender may wait for
};

}  // namespace pkb::emulator

namespace {

bool fits(const PkbEnvelope& wanted, const PkbEnvelope& of) {
  return wanted.context == of.context && (wanted.peer < 0 || wanted.peer == of.peer) && (wanted.tag < 0 || wanted.tag == of.tag);
}

Mail& mail_of(World& world) {
  SharedState& state = shared_state(world);
  if (!state.mail) state.mail = std::make_shared<Mail>();
  return *state.mail;
}

Mailbox& box_of(RankState& rank) { return mail_of(*rank.world).boxes[rank.world->one_process ? 0 : rank.rank]; }

// Others may go on by it.
void happened(World& world) {
  ++world.engine.progress;
  ++world.engine.effects;
}

void give(World& world, Receive& receive, std::shared_ptr<Message> message) {
  message->received_by = receive.id;
  receive.message = std::move(message);
  happened(world);
}

}  // namespace

PKB_RANKS unsigned long long pkb_emu_send(const PkbEnvelope* to, const void* content, int is_awaited) {
  RankState* const rank = calling_rank();
  if (!rank || rank->world->failed()) return 0;
  World& world = *rank->world;
  auto message = std::make_shared<Message>();
  message->id = world.engine.next_id++;
  message->envelope = *to;
  message->envelope.peer = world.one_process ? 0 : rank->rank;
  const auto* const begin = static_cast<const char*>(content);
  message->content.assign(begin, begin + to->bytes);
  world.release(message->id);
  Mail& mail = mail_of(world);
  if (is_awaited) mail.sent[message->id] = message;
  const uint64_t id = message->id;
  Mailbox& box = mail.boxes[to->peer];
  for (Receive& receive : box.receives) {
    if (receive.message || !fits(receive.wanted, message->envelope)) continue;
    give(world, receive, std::move(message));
    return id;
  }
  box.unexpected.push_back(std::move(message));
  happened(world);
  return id;
}

PKB_RANKS int pkb_emu_sent(unsigned long long id, const char* why, int waits) {
  RankState* const rank = calling_rank();
  if (!rank || rank->world->failed()) return -1;
  World& world = *rank->world;
  Mail& mail = mail_of(world);
  const auto found = mail.sent.find(id);
  if (found == mail.sent.end()) return -1;
  const std::shared_ptr<Message> message = found->second;
  if (!waits && !message->received_by) return 0;
  if (!world.block(why, [message] { return message->received_by != 0; })) return -1;
  world.acquire(message->received_by);
  mail.sent.erase(id);
  return 1;
}

PKB_RANKS unsigned long long pkb_emu_expect(const PkbEnvelope* wanted) {
  RankState* const rank = calling_rank();
  if (!rank || rank->world->failed()) return 0;
  World& world = *rank->world;
  Mailbox& box = box_of(*rank);
  Receive receive{world.engine.next_id++, *wanted, nullptr};
  world.release(receive.id);
  const auto come = std::find_if(box.unexpected.begin(), box.unexpected.end(), [&](const auto& each) { return fits(*wanted, each->envelope); });
  if (come != box.unexpected.end()) {
    give(world, receive, std::move(*come));
    box.unexpected.erase(come);
  }
  box.receives.push_back(std::move(receive));
  return box.receives.back().id;
}

PKB_RANKS int pkb_emu_receive(unsigned long long id, const char* why, int waits, void* to, PkbEnvelope* found) {
  RankState* const rank = calling_rank();
  if (!rank || rank->world->failed()) return -1;
  World& world = *rank->world;
  Mailbox& box = box_of(*rank);
  const auto find = [&box, id] { return std::find_if(box.receives.begin(), box.receives.end(), [id](const Receive& each) { return each.id == id; }); };
  if (find() == box.receives.end()) return -1;
  if (!waits && !find()->message) return 0;
  if (!world.block(why, [find] { return find()->message != nullptr; })) return -1;
  const std::shared_ptr<Message> message = find()->message;
  box.receives.erase(find());
  world.acquire(message->id);
  if (message->envelope.bytes <= found->bytes) std::memcpy(to, message->content.data(), message->envelope.bytes);
  *found = message->envelope;
  return 1;
}

PKB_RANKS int pkb_emu_probe(const PkbEnvelope* wanted, const char* why, int waits, PkbEnvelope* found) {
  RankState* const rank = calling_rank();
  if (!rank || rank->world->failed()) return -1;
  Mailbox& box = box_of(*rank);
  const auto find = [&box, of = *wanted] { return std::find_if(box.unexpected.begin(), box.unexpected.end(), [&](const auto& each) { return fits(of, each->envelope); }); };
  if (!waits && find() == box.unexpected.end()) return 0;
  if (!rank->world->block(why, [&box, find] { return find() != box.unexpected.end(); })) return -1;
  *found = (*find())->envelope;
  return 1;
}

PKB_RANKS void pkb_emu_fail(const char* text) {
  RankState* const rank = calling_rank();
  if (!rank) return;
  World& world = *rank->world;
  world.fail(Fault{Outcome::kBodyFailed, world.one_process ? -1 : rank->rank, world.name_of(*World::current) + ": " + text});
}
