"""Consensus among the agents of several hosts: on the leader of the job, and on the leader's state of it.

One agent, the *leader*, decides for the whole job; the others are *followers*: they start and kill peers on their hosts
as the leader says, and report what happens there. A job must outlive its leader, so every follower holds a copy of what
the leader knows, and one of them takes over when the leader is lost. The words are those of Raft (Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014) where the thing is the same.

**State.** Each agent holds a *term* (counted up by every election), the leader of that term, the last *vote* that it
gave, and a *log* (`state`). The log has one kind of entry: the whole state of the job (`job_snapshot`), which replaces
the one before. Its *version* is Raft's index. One part of it, the log of requests and their answers, is large
and changes seldom: a message carries it where it has changed, and a state without it has that of the one before.

**Replication** (`replication`). The leader numbers its messages and sends them to each follower in order, from one
thread for each. A message carries the newest state, commands and records; an empty one is a heartbeat. What follows
from an event is performed only when every reachable follower has acknowledged the state that includes the event, or,
if some are late or lost, a quorum has. A state that all followers acknowledged is *committed*; with the next message
the followers learn so, and drop what came before it.

**Election** (`election`). A follower that has not heard the leader for `lost_after_s`, or whose leader's port refuses
connections, starts a *pre-vote*, which binds nobody: it learns who else has lost the leader, and which logs are newest.
Of those that have, the host with the lowest number stands as *candidate*: it counts up the term, votes for itself, and
requests votes. With a quorum it takes the newest log among the voters and leads. A candidate without one asks again
until a deadline, then its host stops with `NoQuorum`.

**Admission** (`host_admission`). Agents find each other by the list of hosts on their command lines. The one on host 0
founds the job if no other host is in one; all others ask the leader to admit them, also when they come back. A host
that was given up, because its agent did not reply, is no member until it is admitted again.

**Clients** (`leader_proxy`). Peers, and people who steer the job, may talk to any agent: a follower passes calls on to
the leader, and repeats them to the next one if the leader is lost before it has answered.

Invariants
----------

*Election safety*: at most one leader in a term. An agent votes for one host in a term and never in an earlier term
than its last vote; two quorums of one view share a peer, and so a host (`core.cluster.has_majority`).

*Leader append-only*: a leader never takes back a state: each one that it sends has a higher version.

*Log matching*: two logs with the same term and version hold the same state, for one leader made it, and each
follower acknowledged the requests that belong to it with this state or an earlier one of the same leader.

*Leader completeness*: what was performed is in the state of every later leader. The quorum that acknowledged it and the
quorum that elects share a voter, and the candidate takes the newest log of its voters.

*State machine safety*: all hosts perform what one leader decided in one order. A follower takes no message of an
earlier term than its own or its vote, performs each numbered message once, and performs commands of its current term
only.

Like Raft, and not like Raft
----------------------------

Like Raft: terms, one vote in each, votes that refuse earlier terms, pre-votes, heartbeats, a leader that counts only on
what a quorum holds, a leader that steps down before a later term, commands that are repeated with their number.

Not like Raft:

- A quorum is a majority of *peers*, not of agents: hosts that run most of the peers of the view continue, for the
  training is there. Of two equal halves the one with rank 0 continues. Membership is itself in the state, so while a
  new view may or may not be committed, a quorum is required under every state that is not known to be superseded
  (`FollowerLog.uncommitted`), like Raft's joint consensus.
- Before the first view there is no quorum: nobody can be elected, and hosts that lose the leader stop.
- A voter does not refuse a candidate with an older log. The reply carries the voter's log, and the candidate adopts the
  newest; so the lowest host number can win whatever its log.
- Nothing is on disk. A restarted agent is a new one (another *incarnation*) and is admitted as such; a job whose
  agents all end is over. Votes need not outlive a process, for a restarted agent belongs to no job and has no vote.
- There are no randomized timeouts: the lowest number among those that hear each other stands, so votes rarely split.
- A minority does not wait: its hosts end their peers and exit, for the others train on and the leftovers could do
  nothing but hold the machines.
- A host that is lost for as long as ``--heartbeat`` is removed from the job by a decision of the leader, and hears so
  (`fenced`) when it comes back.

The states of a host
--------------------

==============  ============================================  ==============================================
state           event                                         next state
==============  ============================================  ==============================================
outside         host 0, and no other host is in a job         leader of term 1
outside         admitted by the leader                        follower
outside         refused, or ``--ready-deadline`` expired      stopped (exit code 2 or 3)
follower        leader silent, or its port refuses            without leader (requests pre-votes)
follower        message or vote of a later term               follower of that term, once it has a leader
without leader  message of a leader                           follower
without leader  lowest number, and a quorum votes for it      leader of the next term
without leader  no quorum until the deadline, or fenced       stopped (exit code `NO_QUORUM_CODE`)
leader          no quorum acknowledges its state              stopped (exit code `NO_QUORUM_CODE`)
leader          last peer of its host left by a decision      stopped (exit code 0), the others elect
leader          the job is over                               stopped, and all followers with it
follower        the leader says that the job is over          stopped with the job's exit code
==============  ============================================  ==============================================
"""
