"""A real federation: the same experiment as a simulation, with one process per party, joined by Flower links.

The lower party connects to the upper one: clients to the host of their sector, hosts to the server. The upper party
sends a message and the lower one replies. There are three kinds of messages, downwards: `hello` (report your number of
rows), `work` (carry out these steps and send back the values that others need) and `end` (the run is over).

===================  =================================================================================================
Before the start     `init` writes the folders with `party_files` and `keys`; `folder` and `agreement` read them
A party's process    `party_process` (clients and hosts), `server`; `own_data` reads a client's own rows
The server's engine  `deployed_engine` collects the steps of a method; `dispatch` and `placement` get them done below
Answering            `answering` reads a message; `work_messages` carries out steps, with the checks of `party_run`
On the wire          `transport` (addresses, messages, links), `steps`, `payload` (all checks on values), `flower`
For the operator     `party_log`, `status`, `audit` (what was sent); `watched_link` and `observation` see who is stuck
What shows it        `overview` and `live_page` (the page of `deploy watch`), `metrics`
At the end           `final_model` puts the model into every client's folder
===================  =================================================================================================
"""
