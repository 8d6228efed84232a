"""Consensus among the agents of several hosts on the leader of the job and on the leader's state of the job.

One agent, the *leader*, decides for the whole job. The others, its *followers*, start and kill peers on their hosts as
the leader commands, and report the events of their hosts. A job must outlive its leader, so every follower holds a copy
of the leader's state, and one follower takes over when the leader is lost. Concepts shared with Raft (Ongaro and
Ousterhout, "In Search of an Understandable Consensus Algorithm", 2014) have the names that Raft gives them.

**State.** Each agent holds a *term* (incremented by every election), the leader of that term, its last *vote*, and a
*log* (`state`). The log has one kind of entry: the whole state of the job (`JobSnapshot`), which replaces the previous
state. The *version* of a state is Raft's index. One part of the state, the log of requests and their answers, is large
and changes seldom: a message carries this log only after a change; without it, the previous request log stays valid.

**Hosts** (`host_list`). The list of the hosts, with their numbers, addresses and slots, is part of the state. It
changes by one host at a time; a host leaves it for good after a notice, or when it is lost for ``--forget-host``.

**Replication** (`replication`, `commit`). The leader numbers its messages and sends them to each follower in order,
from one thread per follower. A message carries the newest state, commands and records; an empty message is a heartbeat.
The consequences of an event are performed only when every reachable follower has acknowledged the state that includes
the event or, if some followers are late or lost, when a quorum has acknowledged it; a quorum waits for late followers
for at most ``--heartbeat``. A state that all followers have acknowledged is *committed*; the next message informs the
followers of the commit, and they drop earlier states. The leader sends nothing while its main thread hangs
(`ConsensusState.hangs`), because that thread makes its decisions. Before it decides on a lost host or on the end of the
job, a quorum must answer it: otherwise followers that still hear a leader that hears nobody would hold its decisions.

**End.** The end of the job is a decision, and part of the state (`JobSnapshot.end`). Other hosts are told the end once
a quorum holds it; a leader that takes over a state with an end tells it again. A leader without a quorum says that it
leaves. Hosts that the leader has lost are not told: they stop because they find no quorum.

**Election** (`election`, `election_round`). A follower that has not heard the leader for `lost_after_s`, or finds that
the leader's port refuses connections, starts a *pre-vote*, which binds no agent: the follower learns which other agents
have lost the leader, which of them have a quorum of pre-votes, and which logs are newest. A leader's last messages to
two followers may be a pause between heartbeats apart; a follower that is asked for a pre-vote therefore loses the
leader that much earlier, together with the follower that asks. The agent with the lowest host number among the agents
with a quorum of pre-votes is the *candidate*. It increments the term, votes for itself, and requests votes. With a
quorum, the candidate adopts the newest log among its voters and leads. Voters whose newer log prevents a quorum are not
counted, as if they had not answered. An agent without a quorum of pre-votes repeats the pre-vote until a deadline; then
its host stops with `NoQuorum`. An agent whose main thread hangs, or which ends, has no vote.

**Agreement** (`agreement`, `store_agreement`). An election and a commit ask the world outside of the agent a few
questions, through the interface ``Agreement``: may it found the job, may it lead, may it act on a state? By default the
agents answer among themselves (``MajorityAgreement``), as described here; with ``--store`` an etcd answers
(``StoreAgreement``): then a leader is elected by its lease, and the quorum is the set of the hosts that hold the newest
state.

**Admission** (`host_admission`). Agents find each other by the list of hosts on their command lines, by the addresses
of hosts of a running job, or by the address of the leader in an etcd; with ``--restarts`` also by the hosts of their
record, which may go on without those of the list. Unless an etcd decides, the agent of host 0 of a list founds the job
if no other host is in a job. All others ask the leader to admit them, as do hosts that return. The
leader gives a host that is not listed a number, and admits the host when it asks again with this number. A host that
was declared lost, because its agent did not reply, is not a member until it is admitted again. If the leader is lost
before that decision is committed, the host counts as a member, and the next leader admits it again. Messages name the
incarnation of the agent that they are for: a late one for another agent on the same host is refused.

**Clients** (`leader_proxy`). Peers, and people who control the job, may call any agent: a follower passes calls on to
the leader, and repeats them to the next leader if the leader is lost before it has answered.

Invariants
----------

*Election safety*: at most one leader in a term. An agent votes for one host in a term and never in an earlier term than
its last vote; two quorums of one view share a peer, and therefore a host (`core.cluster.has_majority`).

*Leader append-only*: a leader never withdraws a state; each state that it sends has a higher version.

*Log matching*: two logs with the same term and version hold the same state, because one leader made it; each follower
acknowledged the request log together with this state or an earlier state of the same leader.

*Leader completeness*: every performed decision is in the state of every later leader. The quorum that acknowledged the
decision and the quorum that elects share a voter, and the candidate adopts the newest log of its voters.

*State machine safety*: all hosts perform the decisions of one leader in one order. A follower refuses messages of a
term earlier than its own term or the term of its vote, handles each numbered message once, and performs only commands
of its current term.

Like Raft, and not like Raft
----------------------------

Like Raft: terms, one vote per term, votes that refuse earlier terms, pre-votes, heartbeats, a leader that relies only
on states that a quorum holds, a leader that yields to a later term, commands that are repeated with their number.

Not like Raft:

- A quorum is a majority of *peers*, not of agents: hosts that run most of the peers of the view continue, because
  most of the training runs there. Of two equal halves, the half with rank 0 continues. Membership is part of the state,
  so while the commit of a new view is uncertain, a quorum is required under every state that is not known to be
  superseded (`FollowerLog.uncommitted`), as in Raft's joint consensus.
- Before the first view there is no quorum: no agent can be elected, and hosts that lose the leader stop.
- A voter does not refuse a candidate whose log is older than the voter's. The reply contains the voter's log, and the
  candidate adopts the newest log, so the agent with the lowest host number can win even with an old log. Pre-votes are
  counted under the newest log too: a candidate that could not win after adopting that log does not stand.
- Nothing is stored on disk. A restarted agent is a new agent (another *incarnation*) and must be admitted again; a job
  is over when all its agents end. Votes need not outlive a process: a restarted agent is in no job and has no vote.
- A change of the list of hosts is a single-server change, but no quorum depends on it: a listed host without a peer of
  the view counts in no quorum. A host leaves the list after a quorum holds a view without its peers. So under a list
  without this host, earlier views count no more, and the host has no vote and is no candidate: others would not ask for
  its vote, and an election could be split each time.
- No timeout is randomized. Of the agents with a quorum of pre-votes, the lowest number is candidate: votes rarely
  split.
- A minority does not wait: its hosts end their peers and exit, because the other hosts continue to train and the
  minority would only occupy machines.
- A host that is lost for ``--heartbeat`` is removed from the job by a decision of the leader. If the host returns, it
  is notified of the removal (`fenced`).

The states of a host
--------------------

==============  ============================================  ==============================================
state           event                                         next state
==============  ============================================  ==============================================
outside         host 0 of a list, and no other is in a job    leader of term 1
outside         given a number by the leader                  outside (asks again)
outside         admitted by the leader                        follower
outside         refused, or ``--ready-deadline`` expired      stopped (exit code 2 or 3)
follower        leader silent, or its port refuses            without leader (requests pre-votes)
follower        message or vote of a later term               follower of that term, once it has a leader
without leader  message of a leader                           follower
without leader  lowest number with a quorum of pre-votes,     leader of the next term
                and a quorum votes for it
without leader  no quorum until the deadline, or fenced       stopped (exit code `NO_QUORUM_CODE`)
leader          no quorum acknowledges its state              stopped (exit code `NO_QUORUM_CODE`), the others elect
leader          its state includes the end of the job         stopped, and all followers with it
leader          last peer of its host left by a decision      stopped (exit code 0), the others elect
follower        the leader reports the end of the job         stopped with the job's exit code
==============  ============================================  ==============================================
"""
