%% Runs in BEAM: its processes are measured as light ones are (light_work.py), and one line of JSON is printed.
%%
%%   erl -noshell +S 1 -run peer_light inside MESSAGES RING CALLS PROCESSES
-module(peer_light).
-export([inside/1, node/0, echo/1]).

inside(Arguments) ->
    [Messages, Ring, Calls, Processes] = [list_to_integer(Argument) || Argument <- Arguments],
    PingPong = round_trip(2, Messages),
    Round = round_trip(Ring, Messages),
    Echo = spawn(?MODULE, echo, [0]),
    Asked = began(),
    ask(Echo, Calls),
    Rate = took(Asked),
    erlang:garbage_collect(),
    Before = erlang:memory(processes),
    Started = began(),
    Children = [spawn(?MODULE, echo, [0]) || _ <- lists:seq(1, Processes)],
    Spawn = took(Started),
    ask_all(Children, 1),
    Million = took(Started),
    Bytes = (erlang:memory(processes) - Before) / Processes,
    Figures = fun(Of) ->
        [{ping_pong, Messages / Of(PingPong)}, {ring, Messages / Of(Round)}, {calls, Calls / Of(Rate)},
         {spawn_s, Of(Spawn) / Processes}, {million_s, Of(Million)}]
    end,
    Clock = members([{bytes, Bytes} | Figures(fun({Seconds, _}) -> Seconds end)]),
    Cpu = members(Figures(fun({_, Seconds}) -> Seconds end)),
    io:format("{\"version\": \"~s\", ~s, \"cpu\": {~s}}~n", [erlang:system_info(otp_release), Clock, Cpu]),
    halt(0).

members(Found) ->
    lists:join(", ", [io_lib:format("\"~s\": ~.9e", [Key, float(Value)]) || {Key, Value} <- Found]).

%% A ring of Size processes passes a number round, less one each time; the last one says that it is done.
round_trip(Size, Messages) ->
    Nodes = [spawn(?MODULE, node, []) || _ <- lists:seq(1, Size)],
    lists:foldl(fun(Node, Before) -> Before ! {next, Node, self()}, Node end, lists:last(Nodes), Nodes),
    Began = began(),
    hd(Nodes) ! Messages,
    receive done -> ok end,
    Took = took(Began),
    [exit(Node, kill) || Node <- Nodes],
    Took.

node() -> receive {next, Next, Starter} -> node(Next, Starter) end.

node(Next, Starter) ->
    receive
        0 -> Starter ! done, node(Next, Starter);
        N -> Next ! N - 1, node(Next, Starter)
    end.

echo(Asked) ->
    receive {call, From, Ref, N} -> From ! {Ref, N}, echo(Asked) end.

call(To, N) ->
    Ref = make_ref(),
    To ! {call, self(), Ref, N},
    receive {Ref, Answer} -> Answer end.

ask(_Echo, 0) -> ok;
ask(Echo, N) -> N = call(Echo, N), ask(Echo, N - 1).

ask_all([], _) -> ok;
ask_all([Child | Rest], N) -> N = call(Child, N), ask_all(Rest, N + 1).

%% The clock and the CPU's time; the latter counts milliseconds.
began() -> {erlang:monotonic_time(nanosecond), element(1, erlang:statistics(runtime))}.

took({Clock, Cpu}) ->
    {Now, Used} = began(),
    {(Now - Clock) / 1.0e9, max(1, Used - Cpu) / 1.0e3}.
