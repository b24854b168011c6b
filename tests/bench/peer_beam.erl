%% Runs in BEAM: measures its own processes as the others are measured, and prints one line of JSON.
%%
%%   erl -noshell -run peer_beam inside CALLS PIPELINED CASTS MB1 MB64 TIMERS DEATHS ACTORS
%%   erl -noshell -name b@127.0.0.1 ... -run peer_beam serve
%%   erl -noshell -name a@127.0.0.1 ... -run peer_beam across b@127.0.0.1 CALLS PIPELINED CASTS MB1 MB64
%%
%% `inside`: all processes in one BEAM. `across`: the echo is in another node, an operating system process of its own.
-module(peer_beam).
-export([inside/1, serve/0, across/1, echo/1, start_worker/0, init/1, handle_call/3, handle_cast/2]).

inside(Arguments) ->
    [Calls, Pipelined, Casts, Mb1, Mb64, Timers, Deaths, Actors] = numbers(Arguments),
    Echo = spawn(?MODULE, echo, [0]),
    Found = messages(Echo, Calls, Pipelined, Casts, Mb1, Mb64),
    Lateness = [lateness() || _ <- lists:seq(1, Timers)],
    Down = [death() || _ <- lists:seq(1, Deaths)],
    Restart = restarts(Deaths),
    {StartS, Bytes} = many(Actors),
    print(Found ++ [{timers, Lateness}, {down, Down}, {restart, Restart}, {start_s, StartS}, {pss_mb, Bytes / 1.0e6}]),
    halt(0).

serve() ->
    register(echo, spawn(?MODULE, echo, [0])),
    io:format("ready ~s~n", [os:getpid()]).

across([Node | Arguments]) ->
    [Calls, Pipelined, Casts, Mb1, Mb64] = numbers(Arguments),
    Name = list_to_atom(Node),
    true = connect(Name, 100),
    Echo = echo_of(Name),
    Found = messages(Echo, Calls, Pipelined, Casts, Mb1, Mb64),
    Pid = call(Echo, pid),
    Monitor = monitor(process, Echo),
    %% A shell that is up and waits, so that starting it is not counted.
    Shell = open_port({spawn_executable, "/bin/sh"}, [{args, ["-c", "echo; read go; kill -9 " ++ Pid]}]),
    receive {Shell, {data, _}} -> ok end,
    Started = now_ns(),
    port_command(Shell, "go\n"),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    print(Found ++ [{down, [seconds(Started)]}]),
    halt(0).

connect(_, 0) -> false;
connect(Name, Left) ->
    case net_kernel:connect_node(Name) of
        true -> true;
        _ -> timer:sleep(50), connect(Name, Left - 1)
    end.

echo_of(Name) ->
    Me = self(),
    {echo, Name} ! {where, Me},
    receive {here, Echo} -> Echo after 5000 -> exit(no_echo) end.

messages(Echo, Calls, Pipelined, Casts, Mb1, Mb64) ->
    trips(Echo, 100),
    Trips = trips(Echo, Calls),
    Rate = pipelined(Echo, Pipelined),
    CastRate = casts(Echo, Casts, <<>>),
    Mb1Rate = casts(Echo, Mb1, binary:copy(<<0>>, 1000000)),
    Huge = binary:copy(<<0>>, 64000000),
    Started = now_ns(),
    [64000000 = call(Echo, {size, Huge}) || _ <- lists:seq(1, Mb64)],
    Mb64Rate = Mb64 / seconds(Started),
    [{version, erlang:system_info(otp_release)}, {trips, Trips}, {calls, Rate}, {casts, CastRate}, {mb1, Mb1Rate},
     {mb64, Mb64Rate}].

%% -- the one that answers

echo(Taken) ->
    receive
        {call, From, Ref, pid} -> From ! {Ref, os:getpid()}, echo(Taken);
        {call, From, Ref, {size, Data}} -> From ! {Ref, byte_size(Data)}, echo(Taken);
        {call, From, Ref, N} -> From ! {Ref, N}, echo(Taken);
        {where, From} -> From ! {here, self()}, echo(Taken);
        {cast, From, _Data} when (Taken + 1) rem 20 =:= 0 -> From ! {ack, 20}, echo(Taken + 1);
        {cast, _From, _Data} -> echo(Taken + 1)
    end.

call(To, Request) ->
    Ref = make_ref(),
    To ! {call, self(), Ref, Request},
    receive {Ref, Answer} -> Answer end.

%% -- the measurements

trips(Echo, Count) -> [trip(Echo, N) || N <- lists:seq(1, Count)].

trip(Echo, N) ->
    Started = now_ns(),
    N = call(Echo, N),
    seconds(Started).

pipelined(Echo, Count) ->
    Started = now_ns(),
    Pending = queue:from_list([send_call(Echo, N) || N <- lists:seq(1, 64)]),
    Rest = lists:foldl(
        fun(N, Queue) ->
            {{value, Ref}, Shorter} = queue:out(Queue),
            receive {Ref, _} -> queue:in(send_call(Echo, N), Shorter) end
        end,
        Pending, lists:seq(65, Count)),
    [receive {Ref, _} -> ok end || Ref <- queue:to_list(Rest)],
    Count / seconds(Started).

send_call(Echo, N) ->
    Ref = make_ref(),
    Echo ! {call, self(), Ref, N},
    Ref.

casts(Echo, Count, Data) ->
    Started = now_ns(),
    ok = casts(Echo, Count, Data, 0, 0),
    Count / seconds(Started).

casts(_Echo, Count, _Data, _Sent, Acknowledged) when Acknowledged >= Count -> ok;
casts(Echo, Count, Data, Sent, Acknowledged) when Sent < Count, Sent - Acknowledged < 40 ->
    Echo ! {cast, self(), Data},
    casts(Echo, Count, Data, Sent + 1, Acknowledged);
casts(Echo, Count, Data, Sent, Acknowledged) ->
    receive {ack, More} -> casts(Echo, Count, Data, Sent, Acknowledged + More) end.

lateness() ->
    Started = now_ns(),
    erlang:send_after(10, self(), timer_came),
    receive timer_came -> seconds(Started) - 0.01 end.

death() ->
    {Child, Monitor} = spawn_monitor(?MODULE, echo, [0]),
    1 = call(Child, 1),
    Started = now_ns(),
    exit(Child, kill),
    receive {'DOWN', Monitor, process, _, killed} -> seconds(Started) end.

restarts(Count) ->
    ok = logger:set_primary_config(level, none),
    {ok, Supervisor} = supervisor:start_link(?MODULE, {supervise, Count * 2}),
    Samples = [restart() || _ <- lists:seq(1, Count)],
    unlink(Supervisor),
    exit(Supervisor, shutdown),
    Samples.

restart() ->
    Old = whereis(peer_beam_worker),
    Started = now_ns(),
    exit(Old, kill),
    answered(Old),
    seconds(Started).

answered(Old) ->
    try gen_server:call(peer_beam_worker, pid) of
        Old -> answered(Old);
        _New -> ok
    catch
        exit:_ -> answered(Old)
    end.

many(Count) ->
    erlang:garbage_collect(),
    Before = erlang:memory(processes),
    Started = now_ns(),
    Children = [spawn(?MODULE, echo, [0]) || _ <- lists:seq(1, Count)],
    [N = call(Child, N) || {Child, N} <- lists:zip(Children, lists:seq(1, Count))],
    Took = seconds(Started),
    Bytes = (erlang:memory(processes) - Before) / Count,
    [exit(Child, kill) || Child <- Children],
    {Took, Bytes}.

%% -- the supervised worker

start_worker() -> gen_server:start_link({local, peer_beam_worker}, ?MODULE, worker, []).

init({supervise, Intensity}) ->
    Worker = #{id => worker, start => {?MODULE, start_worker, []}, restart => permanent},
    {ok, {#{strategy => one_for_one, intensity => Intensity, period => 1}, [Worker]}};
init(worker) ->
    {ok, none}.

handle_call(pid, _From, State) -> {reply, self(), State}.

handle_cast(_, State) -> {noreply, State}.

%% -- time and output

now_ns() -> erlang:monotonic_time(nanosecond).

seconds(Started) -> (now_ns() - Started) / 1.0e9.

numbers(Arguments) -> [list_to_integer(Argument) || Argument <- Arguments].

print(Found) ->
    Members = [io_lib:format("\"~s\": ~s", [Key, json(Value)]) || {Key, Value} <- Found],
    io:format("{~s}~n", [lists:join(", ", Members)]).

json(Value) when is_float(Value) -> io_lib:format("~.9e", [Value]);
json([First | _] = Values) when is_float(First) -> ["[", lists:join(", ", [json(Value) || Value <- Values]), "]"];
json(Text) -> ["\"", Text, "\""].
